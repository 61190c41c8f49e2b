--! keys: config queue messages tries reserved deadlines seen
--! uses: clock settings reservation
-- arguments: runs of tokens, each as `<token> <first place> <last place> `; answers a digit for each
-- place: 1, or 0 when the reservation does not hold
local answers, ids, retried, seen, alone = {}, {}, {}, {}, {}
local window = settings('dedup_window')
local remembered = stamp(NOW + window * 1000000)

local function settle(id, first_time)
    ids[#ids + 1] = id
    seen[#seen + 1], seen[#seen + 2] = remembered, id
    if not first_time then retried[#retried + 1] = id end
end

-- Whether it had a reservation of its own that holds.
local function settle_alone(token)
    local kept = not alone[token] and redis.call('HGET', RESERVED, token)
    if not kept then return false end
    local attempts, deadline, id = string.match(kept, '^(%d+):(%d+) (.*)$')
    if not id or tonumber(deadline) <= NOW then return false end
    alone[#alone + 1], alone[token] = token, true
    settle(id, attempts == '1')
    return true
end

for token, from, to in string.gmatch(ARGV[1], '(%S+) (%d+) (%d+) ') do
    from, to = tonumber(from), tonumber(to)
    local function named(place) return place == 1 and token or token .. '-' .. place end
    if from == to and settle_alone(named(from)) then
        answers[#answers + 1] = '1'
    else
        local name = token .. '+'
        local kept, deadline, places, repeated = redis.call('HGET', RESERVED, name)
        if kept then deadline, places, repeated = read(kept) end
        local holds = kept and tonumber(deadline) > NOW
        for place = from, to do
            local id = holds and places[place]
            if id then
                places[place] = false
                settle(id, not repeated[tostring(place)])
            end
            answers[#answers + 1] = (id or settle_alone(named(place))) and '1' or '0'
        end
        if holds then keep(name, deadline, places, repeated) end
    end
end
if #ids == 0 then return table.concat(answers) end

-- What is acknowledged is most often the head of the queue, in its order: that is cut off in one go.
-- For a few it is not worth a look.
local cut = 0
if #ids > 4 then
    local head = redis.call('LRANGE', QUEUE, 0, #ids - 1)
    while cut < #ids and head[cut + 1] == ids[cut + 1] do cut = cut + 1 end
    if cut > 0 then redis.call('LTRIM', QUEUE, cut, -1) end
end
for i = cut + 1, #ids do redis.call('LREM', QUEUE, 1, ids[i]) end

if #alone > 0 then
    redis.call('HDEL', RESERVED, unpack(alone))
    redis.call('ZREM', DEADLINES, unpack(alone))
end
redis.call('HDEL', MESSAGES, unpack(ids))
if #retried > 0 then redis.call('HDEL', TRIES, unpack(retried)) end
if window > 0 then
    redis.call('ZADD', SEEN, unpack(seen))
    redis.call('PEXPIRE', SEEN, math.ceil(window * 1000))
end
return table.concat(answers)
