--! keys: config meta messages tries reserved deadlines expiries waiting wakeup high normal low
--! uses: clock batch
-- Arguments: token, visibility (µs), limit; `wait` if the caller waits, or `apart` (see below).
-- Returns a number if there is no message: µs until one is due, -1 if none is scheduled, or -2 if
-- something has expired and `recover` must run first. Otherwise one or more strings, first
--     <deadline, µs> <number of messages> <their places, or -> <subscribed types, or -> <tries>
-- and then the stored messages, one per line. Several messages share a string, because a client
-- reads few long strings faster than many short ones; with `apart` each message is one string. A
-- message that contains line breaks is detected by the number of lines. The tries are a JSON object:
-- place in this response to tries.
local token, limit, apart = ARGV[1], tonumber(ARGV[3]), ARGV[4] == 'apart'
local types, expiring, retried, mixed =
    unpack(redis.call('HMGET', META, 'subs', 'expiring', 'retried', 'mixed'))
local name = limit == 1 and token or token .. '+'

-- Messages per string. Concatenating more takes Lua longer than another string.
local LINES = 16

local function response(deadline, ids, places, tries)
    local values, retries = redis.call('HMGET', MESSAGES, unpack(ids)), {}
    for i = 1, #ids do values[i] = values[i] or '' end
    if tries then
        for i = 1, #ids do retries[tostring(i)] = tries[i] or nil end
    end
    local head = deadline .. ' ' .. #ids .. ' ' .. places .. ' '
        .. (types and string.gsub(types, ' ', ',') or '-') .. ' ' .. (next(retries) and cjson.encode(retries) or '{}')
    if apart then return {head, unpack(values)} end
    if #ids == 1 then return head .. '\n' .. values[1] end
    local texts = {head}
    for from = 1, #ids, LINES do
        texts[#texts + 1] = table.concat(values, '\n', from, math.min(from + LINES - 1, #ids))
    end
    return texts
end

-- Idempotent: the client repeats a token if the response was lost, and gets the same messages.
local reserved = redis.call('HGET', RESERVED, name)
if reserved == CANCELLED then return -1 end
if reserved then
    local ids, places, deadline = {}, {}
    if limit == 1 then
        deadline, ids[1] = string.match(reserved, '^%d+:(%d+) (.*)$')
        places[1] = 1
    else
        local all
        deadline, all = read(reserved)
        for place, id in ipairs(all) do
            if id then ids[#ids + 1], places[#places + 1] = id, place end
        end
    end
    if tonumber(deadline) > NOW then
        local tries = redis.call('HMGET', TRIES, unpack(ids))
        return response(deadline, ids, table.concat(places, ','), tries)
    end
end

local function first_expired(key) return redis.call('ZRANGEBYSCORE', key, '-inf', now, 'LIMIT', '0', '1')[1] end
if first_expired(DEADLINES) or (expiring and first_expired(EXPIRIES)) then return -2 end

local ids
if not mixed then
    -- Strings as arguments: Lua would format a number again for each command.
    ids = redis.call('ZRANGEBYSCORE', NORMAL, '-inf', now, 'LIMIT', '0', ARGV[3])
    -- They have the lowest ranks: removal by rank is faster than by id.
    if #ids > 0 then redis.call('ZREMRANGEBYRANK', NORMAL, '0', #ids == 1 and '0' or #ids - 1) end
else
    ids = {}

    -- Returns whether there was a message of this priority.
    local function take(level, number)
        local due = redis.call('ZRANGEBYSCORE', level, '-inf', now, 'LIMIT', 0, number)
        if #due == 0 then return false end
        redis.call('ZREMRANGEBYRANK', level, 0, #due - 1)
        for _, id in ipairs(due) do ids[#ids + 1] = id end
        return true
    end

    local function level_of_oldest()
        local oldest, result
        for _, level in ipairs({HIGH, NORMAL, LOW}) do
            local first = redis.call('ZRANGE', level, 0, 0, 'WITHSCORES')
            if first[1] and (not oldest or tonumber(first[2]) < oldest) then
                oldest, result = tonumber(first[2]), level
            end
        end
        return result
    end

    local fairness = tonumber(redis.call('HGET', CONFIG, 'fairness') or DEFAULTS.fairness)
    if fairness > 0 then
        repeat
            local taken
            if redis.call('HINCRBY', META, 'turns', 1) % fairness == 0 then
                local level = level_of_oldest()
                taken = level and take(level, 1)
            else
                taken = take(HIGH, 1) or take(NORMAL, 1) or take(LOW, 1)
            end
        until #ids == limit or not taken
    else
        for _, level in ipairs({HIGH, NORMAL, LOW}) do
            if #ids < limit then take(level, limit - #ids) end
        end
    end
end

if #ids > 0 then
    local deadline = stamp(NOW + ARGV[2])
    local tries, repeated = nil, {}
    if expiring then redis.call('ZREM', EXPIRIES, unpack(ids)) end
    if retried then
        tries = redis.call('HMGET', TRIES, unpack(ids))
        for place = 1, #ids do
            if tries[place] then repeated[tostring(place)] = string.match(tries[place], '^(%d+) ') + 1 end
        end
    end
    local reservation = limit == 1 and (repeated['1'] or '1') .. ':' .. deadline .. ' ' .. ids[1]
        or format_batch(deadline, ids, repeated)
    redis.call('HSET', RESERVED, name, reservation)
    redis.call('ZADD', DEADLINES, deadline, name)
    return response(deadline, ids, '-', tries)
end

local due = -1
if ARGV[4] == 'wait' then
    -- A waiting receiver looks again when a sender wakes it, which it does while WAITING exists, and
    -- when a message or a reservation is due.
    redis.call('DEL', WAKEUP)
    redis.call('SET', WAITING, '1', 'PX', 2000)
    for _, key in ipairs({HIGH, NORMAL, LOW, DEADLINES}) do
        local first = redis.call('ZRANGE', key, 0, 0, 'WITHSCORES')
        local wait = first[2] and math.max(tonumber(first[2]) - NOW, 0)
        if wait and (due < 0 or wait < due) then due = wait end
    end
end
return due
