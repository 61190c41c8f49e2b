--! keys: config queue messages tries reserved deadlines expiries subs bell turns dlq dead stats high normal low
--! uses: clock settings letters bury reclaim
-- arguments: token, visibility (µs), most, 1 when the caller would wait
-- answers: returned, dead, deadline (µs), µs until something is due (-1: nothing waits), and for
-- each message what is stored and its tries. The tokens are `token`, `token-2`, `token-3`, …
local token, visibility, most = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])

local function named(number) return number == 1 and token or token .. '-' .. number end

-- The same token again: the answer was lost on its way. What it reserved is handed out again.
local given = redis.call('ZSCORE', DEADLINES, token)
if given and tonumber(given) > NOW then
    local answer = {0, 0, tonumber(given), -1}
    for number = 1, most do
        local id = string.match(redis.call('HGET', RESERVED, named(number)) or '', '^%d+ (.*)$')
        if not id then break end
        answer[#answer + 1] = redis.call('HGET', MESSAGES, id) or ''
        answer[#answer + 1] = redis.call('HGET', TRIES, id) or ''
    end
    return answer
end

local returned, dead = reclaim(100)
dead = dead + bury_expired(100)

local deadline = NOW + visibility
local answer = {returned, dead, deadline, -1}
local reservations, deadlines, count = {}, {}, 0
local wanted
for _, kind in ipairs(redis.call('SMEMBERS', SUBS)) do
    wanted = wanted or {}
    wanted[kind] = true
end

local function hand_out(id, value, tries)
    local attempts = tonumber(string.match(tries or '', '^(%d+) ') or 0)
    local head = header(value)
    if not head then
        bury(id, value, 'permanent', POISON, attempts)
    elseif head.expires > 0 and head.expires <= NOW then
        bury(id, value, 'timeout', 'expired: nobody received it in time', attempts)
    elseif wanted and not wanted[head.kind] then
        bury(id, value, 'permanent', 'not subscribed: the agent takes no ' .. head.kind, attempts)
    else
        count = count + 1
        if head.expires > 0 then redis.call('ZREM', EXPIRIES, id) end
        reservations[2 * count - 1], reservations[2 * count] = named(count), (attempts + 1) .. ' ' .. id
        deadlines[2 * count - 1], deadlines[2 * count] = deadline, named(count)
        answer[#answer + 1], answer[#answer + 2] = value, tries or ''
        return
    end
    answer[2] = answer[2] + 1
end

-- Whether anything was taken from this level, though it may all have been buried.
local function take(level, number)
    local ids = redis.call('ZRANGEBYSCORE', level, '-inf', NOW, 'LIMIT', 0, number)
    if #ids == 0 then return false end
    redis.call('ZREM', level, unpack(ids))
    local values = redis.call('HMGET', MESSAGES, unpack(ids))
    local tries = redis.call('HMGET', TRIES, unpack(ids))
    for i, id in ipairs(ids) do hand_out(id, values[i], tries[i]) end
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

local fairness = setting('fairness')
if fairness > 0 then
    repeat
        local anything
        if redis.call('INCR', TURNS) % fairness == 0 then
            local level = longest_waiting()
            anything = level and take(level, 1)
        else
            anything = take(HIGH, 1) or take(NORMAL, 1) or take(LOW, 1)
        end
    until count == most or not anything
else
    for _, level in ipairs({HIGH, NORMAL, LOW}) do
        while count < most and take(level, most - count) do end
    end
end

if count > 0 then
    redis.call('HSET', RESERVED, unpack(reservations))
    redis.call('ZADD', DEADLINES, unpack(deadlines))
else
    redis.call('DEL', BELL)
end
-- Whoever waits looks again when something is sent, which rings, or when something is due.
if count == 0 and ARGV[4] == '1' then
    for _, key in ipairs({HIGH, NORMAL, LOW, DEADLINES}) do
        local first = redis.call('ZRANGE', key, 0, 0, 'WITHSCORES')
        local wait = first[2] and math.max(tonumber(first[2]) - NOW, 0)
        if wait and (answer[4] < 0 or wait < answer[4]) then answer[4] = wait end
    end
end
return answer
