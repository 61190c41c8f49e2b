-- A stored message is a header and its body:
--     <priority> <type> <sent, µs> <expires, µs, or 0> <body>
-- A try is `<attempts so far> <error>`.
-- The flags `mixed`, `retried` and `expiring` in META say that there may be other priorities than
-- NORMAL, tries, and expiring messages. Without a flag, `receive` skips the lookup.
local function header(value)
    if not value then return nil end
    local priority, kind, sent, expires = string.match(value, '^(%d) (%a+) (%d+) (%d+) ')
    if not LEVELS[priority] then return nil end
    return {level = LEVELS[priority], kind = kind, sent = tonumber(sent), expires = tonumber(expires)}
end

-- Make a message available at `moment`.
local function schedule(id, head, moment)
    redis.call('ZADD', head.level, moment, id)
    if head.level ~= NORMAL then redis.call('HSET', META, 'mixed', 1) end
    if head.expires > 0 then redis.call('ZADD', EXPIRIES, head.expires, id) end
end

-- Record a failed delivery attempt.
local function record_try(id, attempts, error)
    redis.call('HSET', TRIES, id, attempts .. ' ' .. error)
    redis.call('HSET', META, 'retried', 1)
end
