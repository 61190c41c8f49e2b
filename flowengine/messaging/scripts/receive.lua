--! keys: config meta messages tries reserved deadlines expiries waiting bell high normal low
--! uses: clock settings
-- arguments: token, visibility (µs), most, 1 when the caller would wait
-- answers {1} when something has expired: `recover` comes first. Otherwise 0, the types that the
-- agent takes, the deadline (µs), µs until something is due (-1: nothing waits), what is stored of
-- the messages, and for each that was tried before its place and its tries. The tokens are `token`,
-- `token-2`, `token-3`, …
local token, visibility, most = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
local types, expiring, retried, mixed =
    unpack(redis.call('HMGET', META, 'subs', 'expiring', 'retried', 'mixed'))
-- A number is written out anew for every command that gets it; a text is not.
local now, deadline = stamp(NOW), stamp(NOW + visibility)
local count, stored = 0, {}
local answer = {0, types or '', NOW + visibility, -1, stored}

local function named(number) return number == 1 and token or token .. '-' .. number end

local function hand_out(value, tries)
    count = count + 1
    stored[count] = value or ''
    if tries then answer[#answer + 1], answer[#answer + 2] = count, tries end
end

-- The same token again: the answer was lost on its way. What it reserved is handed out again.
local given = redis.call('ZSCORE', DEADLINES, token)
if given and tonumber(given) > NOW then
    answer[3] = tonumber(given)
    for number = 1, most do
        local id = string.match(redis.call('HGET', RESERVED, named(number)) or '', '^%S+ (.*)$')
        if not id then break end
        hand_out(redis.call('HGET', MESSAGES, id), redis.call('HGET', TRIES, id))
    end
    return answer
end

local function over(key) return redis.call('ZRANGEBYSCORE', key, '-inf', now, 'LIMIT', 0, 1)[1] end
if over(DEADLINES) or (expiring and over(EXPIRIES)) then return {1} end

local reservations, deadlines = {}, {}
local first_time = '1:' .. deadline .. ' '

-- Whether anything was taken from this level.
local function take(level, number)
    local ids = redis.call('ZRANGEBYSCORE', level, '-inf', now, 'LIMIT', 0, number)
    if #ids == 0 then return false end
    -- They are the first of their level: to say how many is quicker than to name them.
    redis.call('ZREMRANGEBYRANK', level, 0, #ids - 1)
    if expiring then redis.call('ZREM', EXPIRIES, unpack(ids)) end
    local values = redis.call('HMGET', MESSAGES, unpack(ids))
    local tries = retried and redis.call('HMGET', TRIES, unpack(ids)) or {}
    for i, id in ipairs(ids) do
        local before, tried = first_time, tries[i]
        if tried then before = (string.match(tried, '^(%d+) ') + 1) .. ':' .. deadline .. ' ' end
        hand_out(values[i], tried)
        local place, name = 2 * count, named(count)
        reservations[place - 1], reservations[place] = name, before .. id
        deadlines[place - 1], deadlines[place] = deadline, name
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

local fairness = mixed and settings('fairness') or 0
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
    for _, level in ipairs(mixed and {HIGH, NORMAL, LOW} or {NORMAL}) do
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
