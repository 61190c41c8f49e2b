--! keys: config meta messages tries reserved deadlines expiries waiting bell high normal low
--! uses: clock settings
-- arguments: token, visibility (µs), most, 1 when the caller would wait
-- answers {1} when something has expired: `recover` comes first. Otherwise 0, the types that the
-- agent takes, the deadline (µs), µs until something is due (-1: nothing waits), and for each
-- message what is stored and its tries. The tokens are `token`, `token-2`, `token-3`, …
local token, visibility, most = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
local types, expiring = unpack(redis.call('HMGET', META, 'subs', 'expiring'))
local answer = {0, types or '', NOW + visibility, -1}
-- A number is written out anew for every command that gets it; a text is not.
local now, deadline = stamp(NOW), stamp(NOW + visibility)

local function named(number) return number == 1 and token or token .. '-' .. number end

-- The same token again: the answer was lost on its way. What it reserved is handed out again.
local given = redis.call('ZSCORE', DEADLINES, token)
if given and tonumber(given) > NOW then
    answer[3] = tonumber(given)
    for number = 1, most do
        local id = string.match(redis.call('HGET', RESERVED, named(number)) or '', '^%d+ (.*)$')
        if not id then break end
        answer[#answer + 1] = redis.call('HGET', MESSAGES, id) or ''
        answer[#answer + 1] = redis.call('HGET', TRIES, id) or ''
    end
    return answer
end

local function over(key) return redis.call('ZRANGEBYSCORE', key, '-inf', now, 'LIMIT', 0, 1)[1] end
if over(DEADLINES) or (expiring and over(EXPIRIES)) then return {1} end

local reservations, deadlines, count = {}, {}, 0

-- Whether anything was taken from this level.
local function take(level, number)
    local ids = redis.call('ZRANGEBYSCORE', level, '-inf', now, 'LIMIT', 0, number)
    if #ids == 0 then return false end
    redis.call('ZREM', level, unpack(ids))
    if expiring then redis.call('ZREM', EXPIRIES, unpack(ids)) end
    local values = redis.call('HMGET', MESSAGES, unpack(ids))
    local tries = redis.call('HMGET', TRIES, unpack(ids))
    for i, id in ipairs(ids) do
        count = count + 1
        local attempts = tries[i] and string.match(tries[i], '^(%d+) ') or 0
        local place, name = 2 * count, named(count)
        reservations[place - 1], reservations[place] = name, (attempts + 1) .. ' ' .. id
        deadlines[place - 1], deadlines[place] = deadline, name
        answer[place + 3], answer[place + 4] = values[i] or '', tries[i] or ''
    end
    return true
end

local function longest_waiting()
    local oldest, found
    for _, level in ipairs({HIGH, NORMAL, LOW}) do
        local first = redis.call('ZRANGE', level, 0, 0, 'WITHSCORES')
        if first[1] and (not oldest or tonumber(first[2]) < oldest) then
            oldest, found = tonumber(first[2]), level
        end
    end
    return found
end

local fairness = settings('fairness')
if fairness > 0 then
    repeat
        local anything
        if redis.call('HINCRBY', META, 'turns', 1) % fairness == 0 then
            local level = longest_waiting()
            anything = level and take(level, 1)
        else
            anything = take(HIGH, 1) or take(NORMAL, 1) or take(LOW, 1)
        end
    until count == most or not anything
else
    for _, level in ipairs({HIGH, NORMAL, LOW}) do
        if count < most then take(level, most - count) end
    end
end

if count > 0 then
    redis.call('HSET', RESERVED, unpack(reservations))
    redis.call('ZADD', DEADLINES, unpack(deadlines))
elseif ARGV[4] == '1' then
    -- Whoever waits looks again when something is sent, which rings while somebody is known to
    -- wait, and when something is due.
    redis.call('DEL', BELL)
    redis.call('SET', WAITING, '1', 'PX', 2000)
    for _, key in ipairs({HIGH, NORMAL, LOW, DEADLINES}) do
        local first = redis.call('ZRANGE', key, 0, 0, 'WITHSCORES')
        local wait = first[2] and math.max(tonumber(first[2]) - NOW, 0)
        if wait and (answer[4] < 0 or wait < answer[4]) then answer[4] = wait end
    end
end
return answer
