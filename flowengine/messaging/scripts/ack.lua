--! keys: config queue messages tries reserved deadlines seen
--! uses: clock batch reservation
-- arguments: runs of tokens, each as `<token> <first place> <last place> `; answers a digit for each
-- place: 1, or 0 when the reservation does not hold. One token may be given as it is.
local ids, retried, answers = {}, {}

-- What had a reservation of its own that holds.
local alone = {}
local function settle_alone(token)
    local kept = redis.call('HGET', RESERVED, token)
    if not kept or alone[token] then return false end
    local attempts, deadline, id = string.match(kept, '^(%d+):(%d+) (.*)$')
    if not id or tonumber(deadline) <= NOW then return false end
    alone[#alone + 1], alone[token], ids[#ids + 1] = token, true, id
    if attempts ~= '1' then retried[#retried + 1] = id end
    return true
end

if not settle_alone(ARGV[1]) then
    answers = {}
    local runs = ARGV[1]
    if not string.find(runs, ' ', 1, true) then
        runs = string.gsub(runs .. '-1', '^([^-]+)-(%d+).*$', '%1 %2 %2 ')
    end
    for token, from, to in string.gmatch(runs, '(%S+) (%d+) (%d+) ') do
        local function named(place) return place == 1 and token or token .. '-' .. place end
        from, to = tonumber(from), tonumber(to)
        if from == to and settle_alone(named(from)) then
            answers[#answers + 1] = '1'
        else
            local name = token .. '+'
            local kept, deadline, places, repeated = redis.call('HGET', RESERVED, name)
            if kept then deadline, places, repeated = read(kept) end
            local holds = kept and tonumber(deadline) > NOW
            local any_repeated = kept and next(repeated)
            for place = from, to do
                local id = holds and places[place]
                if id then
                    places[place], ids[#ids + 1] = false, id
                    if any_repeated and repeated[tostring(place)] then retried[#retried + 1] = id end
                    answers[#answers + 1] = '1'
                else
                    answers[#answers + 1] = settle_alone(named(place)) and '1' or '0'
                end
            end
            if holds then keep(name, deadline, places, repeated) end
        end
    end
    if #ids == 0 then return table.concat(answers) end
end

-- A batch is most often a piece of the queue, in its order, and near its head: before it is what
-- others hold. Then it is cut out in one go. For a few it is not worth a look.
local cut = 0
if #ids > 4 then
    local from = redis.call('LPOS', QUEUE, ids[1])
    if from and from <= 1000 then
        local piece = redis.call('LRANGE', QUEUE, from, from + #ids - 1)
        while cut < #ids and piece[cut + 1] == ids[cut + 1] do cut = cut + 1 end
        local before, backwards = from > 0 and redis.call('LRANGE', QUEUE, 0, from - 1) or {}, {}
        for i, id in ipairs(before) do backwards[from + 1 - i] = id end
        redis.call('LTRIM', QUEUE, from + cut, -1)
        if from > 0 then redis.call('LPUSH', QUEUE, unpack(backwards)) end
    end
end
for i = cut + 1, #ids do redis.call('LREM', QUEUE, '1', ids[i]) end

if #alone > 0 then
    redis.call('HDEL', RESERVED, unpack(alone))
    redis.call('ZREM', DEADLINES, unpack(alone))
end
redis.call('HDEL', MESSAGES, unpack(ids))
if #retried > 0 then redis.call('HDEL', TRIES, unpack(retried)) end
local found = redis.call('HMGET', CONFIG, 'queue_size', 'dedup_window')
local size, window = tonumber(found[1] or DEFAULTS.queue_size), tonumber(found[2] or DEFAULTS.dedup_window)
if window > 0 then
    local seen, remembered = {}, stamp(NOW + window * 1000000)
    for place, id in ipairs(ids) do seen[2 * place - 1], seen[2 * place] = remembered, id end
    redis.call('ZADD', SEEN, unpack(seen))
    redis.call('PEXPIREAT', SEEN, string.sub(remembered, 1, -4))
    if redis.call('ZCARD', SEEN) > size then redis.call('ZREMRANGEBYRANK', SEEN, 0, -size - 1) end
end
return answers and table.concat(answers) or '1'
