-- A stored message is a header and the body as it came:
--     <priority> <type> <sent, µs> <expires, µs, or 0> <body>
-- A try is `<attempts so far> <error>`.
-- `mixed`, `retried` and `expiring` in META tell who receives that there may be other priorities
-- than NORMAL, tries and times of expiry: what is not there is not looked for.
local function header(value)
    if not value then return nil end
    local priority, kind, sent, expires = string.match(value, '^(%d) (%a+) (%d+) (%d+) ')
    if not LEVELS[priority] then return nil end
    return {level = LEVELS[priority], kind = kind, sent = tonumber(sent), expires = tonumber(expires)}
end

-- It can be received from `moment` on.
local function schedule(id, head, moment)
    redis.call('ZADD', head.level, moment, id)
    if head.level ~= NORMAL then redis.call('HSET', META, 'mixed', 1) end
    if head.expires > 0 then redis.call('ZADD', EXPIRIES, head.expires, id) end
end

-- It was handed out, and that came to nothing.
local function tried(id, attempts, error)
    redis.call('HSET', TRIES, id, attempts .. ' ' .. error)
    redis.call('HSET', META, 'retried', 1)
end
