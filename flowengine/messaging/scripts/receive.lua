--! keys: config meta messages tries reserved deadlines expiries waiting bell high normal low
--! uses: clock batch
-- arguments: token, visibility (µs), most; `wait` when the caller would wait, `apart` for messages apart
-- answers a number when there is nothing to hand out: the µs until something is due, -1 when nothing
-- waits, -2 when something has expired: `recover` comes first. Otherwise a text or several: first
--     <deadline, µs> <number of messages> <their places, or -> <types the agent takes, or -> <tries>
-- and then, each in a line of its own, what is stored of the messages. That is some texts with many
-- lines, for a client takes longer to read many texts; apart, it is one text for each. A message
-- that has lines itself shows in their number. The tries are JSON: place among these to tries.
local token, most, apart = ARGV[1], tonumber(ARGV[3]), ARGV[4] == 'apart'
local types, expiring, retried, mixed =
    unpack(redis.call('HMGET', META, 'subs', 'expiring', 'retried', 'mixed'))
local name = most == 1 and token or token .. '+'

-- More lines than these in one text take Lua longer than a text of their own.
local LINES = 16

local function handed_out(deadline, ids, places, tries)
    local values, told = redis.call('HMGET', MESSAGES, unpack(ids)), {}
    for i = 1, #ids do values[i] = values[i] or '' end
    if tries then
        for i = 1, #ids do told[tostring(i)] = tries[i] or nil end
    end
    local head = deadline .. ' ' .. #ids .. ' ' .. places .. ' '
        .. (types and string.gsub(types, ' ', ',') or '-') .. ' ' .. (next(told) and cjson.encode(told) or '{}')
    if apart then return {head, unpack(values)} end
    if #ids == 1 then return head .. '\n' .. values[1] end
    local texts = {head}
    for from = 1, #ids, LINES do
        texts[#texts + 1] = table.concat(values, '\n', from, math.min(from + LINES - 1, #ids))
    end
    return texts
end

-- The same token again: the answer was lost on its way. What it reserved is handed out again.
local given = redis.call('HGET', RESERVED, name)
if given == CANCELLED then return -1 end
if given then
    local ids, places, deadline = {}, {}
    if most == 1 then
        deadline, ids[1] = string.match(given, '^%d+:(%d+) (.*)$')
        places[1] = 1
    else
        local all
        deadline, all = read(given)
        for place, id in ipairs(all) do
            if id then ids[#ids + 1], places[#places + 1] = id, place end
        end
    end
    if tonumber(deadline) > NOW then
        local tries = redis.call('HMGET', TRIES, unpack(ids))
        return handed_out(deadline, ids, table.concat(places, ','), tries)
    end
end

local function over(key) return redis.call('ZRANGEBYSCORE', key, '-inf', now, 'LIMIT', '0', '1')[1] end
if over(DEADLINES) or (expiring and over(EXPIRIES)) then return -2 end

local ids
if not mixed then
    -- A number is written out anew for every command that gets it; a text is not.
    ids = redis.call('ZRANGEBYSCORE', NORMAL, '-inf', now, 'LIMIT', '0', ARGV[3])
    -- They are the first of their level: to say how many is quicker than to name them.
    if #ids > 0 then redis.call('ZREMRANGEBYRANK', NORMAL, '0', #ids == 1 and '0' or #ids - 1) end
else
    ids = {}

    -- Whether anything was taken from this level.
    local function take(level, number)
        local found = redis.call('ZRANGEBYSCORE', level, '-inf', now, 'LIMIT', 0, number)
        if #found == 0 then return false end
        redis.call('ZREMRANGEBYRANK', level, 0, #found - 1)
        for _, id in ipairs(found) do ids[#ids + 1] = id end
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

    local fairness = tonumber(redis.call('HGET', CONFIG, 'fairness') or DEFAULTS.fairness)
    if fairness > 0 then
        repeat
            local anything
            if redis.call('HINCRBY', META, 'turns', 1) % fairness == 0 then
                local level = longest_waiting()
                anything = level and take(level, 1)
            else
                anything = take(HIGH, 1) or take(NORMAL, 1) or take(LOW, 1)
            end
        until #ids == most or not anything
    else
        for _, level in ipairs({HIGH, NORMAL, LOW}) do
            if #ids < most then take(level, most - #ids) end
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
    local kept = most == 1 and (repeated['1'] or '1') .. ':' .. deadline .. ' ' .. ids[1]
        or written(deadline, ids, repeated)
    redis.call('HSET', RESERVED, name, kept)
    redis.call('ZADD', DEADLINES, deadline, name)
    return handed_out(deadline, ids, '-', tries)
end

local due = -1
if ARGV[4] == 'wait' then
    -- Whoever waits looks again when something is sent, which rings while somebody is known to
    -- wait, and when something is due.
    redis.call('DEL', BELL)
    redis.call('SET', WAITING, '1', 'PX', 2000)
    for _, key in ipairs({HIGH, NORMAL, LOW, DEADLINES}) do
        local first = redis.call('ZRANGE', key, 0, 0, 'WITHSCORES')
        local wait = first[2] and math.max(tonumber(first[2]) - NOW, 0)
        if wait and (due < 0 or wait < due) then due = wait end
    end
end
return due
