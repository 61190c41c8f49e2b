--! keys: config queue messages tries reserved deadlines seen
--! uses: clock batch reservation
-- Arguments: ranges of tokens, each as `<token> <first place> <last place> `, or one plain token.
-- Returns a digit for each place: 1, or 0 if there is no valid reservation.
local ids, retried, codes = {}, {}

-- Tokens of reservations that are not part of a batch.
local single = {}
local function settle_single(token)
    local stored = redis.call('HGET', RESERVED, token)
    if not stored or single[token] then return false end
    local attempts, deadline, id = string.match(stored, '^(%d+):(%d+) (.*)$')
    if not id or tonumber(deadline) <= NOW then return false end
    single[#single + 1], single[token], ids[#ids + 1] = token, true, id
    if attempts ~= '1' then retried[#retried + 1] = id end
    return true
end

if not settle_single(ARGV[1]) then
    codes = {}
    local ranges = ARGV[1]
    if not string.find(ranges, ' ', 1, true) then
        ranges = string.gsub(ranges .. '-1', '^([^-]+)-(%d+).*$', '%1 %2 %2 ')
    end
    for token, from, to in string.gmatch(ranges, '(%S+) (%d+) (%d+) ') do
        local function token_of(place) return place == 1 and token or token .. '-' .. place end
        from, to = tonumber(from), tonumber(to)
        if from == to and settle_single(token_of(from)) then
            codes[#codes + 1] = '1'
        else
            local name = token .. '+'
            local stored, deadline, places, repeated = redis.call('HGET', RESERVED, name)
            if stored then deadline, places, repeated = read(stored) end
            local valid = stored and tonumber(deadline) > NOW
            local any_repeated = stored and next(repeated)
            for place = from, to do
                local id = valid and places[place]
                if id then
                    places[place], ids[#ids + 1] = false, id
                    if any_repeated and repeated[tostring(place)] then retried[#retried + 1] = id end
                    codes[#codes + 1] = '1'
                else
                    codes[#codes + 1] = settle_single(token_of(place)) and '1' or '0'
                end
            end
            if valid then store(name, deadline, places, repeated) end
        end
    end
    if #ids == 0 then return table.concat(codes) end
end

-- A batch is usually a contiguous section near the head of the queue, behind messages that are
-- reserved by others. Such a section is removed with one LTRIM. That does not pay off for few ids.
local cut = 0
if #ids > 4 then
    local from = redis.call('LPOS', QUEUE, ids[1])
    if from and from <= 1000 then
        local section = redis.call('LRANGE', QUEUE, from, from + #ids - 1)
        while cut < #ids and section[cut + 1] == ids[cut + 1] do cut = cut + 1 end
        local before, backwards = from > 0 and redis.call('LRANGE', QUEUE, 0, from - 1) or {}, {}
        for i, id in ipairs(before) do backwards[from + 1 - i] = id end
        redis.call('LTRIM', QUEUE, from + cut, -1)
        if from > 0 then redis.call('LPUSH', QUEUE, unpack(backwards)) end
    end
end
for i = cut + 1, #ids do redis.call('LREM', QUEUE, '1', ids[i]) end

if #single > 0 then
    redis.call('HDEL', RESERVED, unpack(single))
    redis.call('ZREM', DEADLINES, unpack(single))
end
redis.call('HDEL', MESSAGES, unpack(ids))
if #retried > 0 then redis.call('HDEL', TRIES, unpack(retried)) end
local config = redis.call('HMGET', CONFIG, 'queue_size', 'dedup_window')
local size, window = tonumber(config[1] or DEFAULTS.queue_size), tonumber(config[2] or DEFAULTS.dedup_window)
if window > 0 then
    local seen, forget_at = {}, stamp(NOW + window * 1000000)
    for place, id in ipairs(ids) do seen[2 * place - 1], seen[2 * place] = forget_at, id end
    redis.call('ZADD', SEEN, unpack(seen))
    redis.call('PEXPIREAT', SEEN, string.sub(forget_at, 1, -4))
    if redis.call('ZCARD', SEEN) > size then redis.call('ZREMRANGEBYRANK', SEEN, 0, -size - 1) end
end
return codes and table.concat(codes) or '1'
