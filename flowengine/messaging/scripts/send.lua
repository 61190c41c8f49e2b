--! keys: config meta queue messages expiries seen waiting wakeup endpoints high normal low
--! uses: clock settings levels wake
-- Arguments: endpoint, delay (µs), lifetime (µs or 0); for each message its priority, type, and the
-- lengths of its id and body; all ids and bodies concatenated, because parsing one argument per
-- message would take longer than the rest of the script.
-- Returns a digit for each message: 1 enqueued, 2 duplicate, 3 queue full, 4 not subscribed.
local delay, lifetime, texts = tonumber(ARGV[2]), tonumber(ARGV[3]), ARGV[5]
local size, window = settings('queue_size', 'dedup_window')
local types, mixed = unpack(redis.call('HMGET', META, 'subs', 'mixed'))
local length = redis.call('LLEN', QUEUE)
if length == 0 then redis.call('SADD', ENDPOINTS, ARGV[1]) end

local expires = lifetime > 0 and stamp(NOW + lifetime) or '0'
local between = ' ' .. now .. ' ' .. expires .. ' '
local sent, heads, levels, bodies, at = {}, {}, {}, {}, 1
for head, priority, id_length, body_length in string.gmatch(ARGV[4], '((%d) %a+) (%d+) (%d+) ') do
    local place, body = #sent + 1, at + id_length
    sent[place], heads[place], levels[place] = string.sub(texts, at, body - 1), head, priority
    at = body + body_length
    bodies[place] = string.sub(texts, body, at - 1)
end

-- Looking up absent ids is cheap, and most ids are absent.
local stored = redis.call('HMGET', MESSAGES, unpack(sent))
local acknowledged = window > 0 and redis.call('ZMSCORE', SEEN, unpack(sent)) or {}
local codes, ids, values, due, expiring, enqueued = {}, {}, {}, {}, {}, {}
for place, id in ipairs(sent) do
    if types and not string.find(types, string.sub(heads[place], 3), 1, true) then
        codes[place] = '4'
    elseif stored[place] or enqueued[id] or (acknowledged[place] and tonumber(acknowledged[place]) > NOW) then
        codes[place] = '2'
    elseif length + #ids >= size then
        codes[place] = '3'
    else
        local level = due[levels[place]] or {}
        due[levels[place]] = level
        -- Messages of a batch are scheduled a microsecond apart: equal scores are ordered by id.
        level[#level + 1], level[#level + 2] = stamp(NOW + delay + #ids), id
        ids[#ids + 1], enqueued[id] = id, true
        values[#values + 1], values[#values + 2] = id, heads[place] .. between .. bodies[place]
        if lifetime > 0 then expiring[#expiring + 1], expiring[#expiring + 2] = expires, id end
        codes[place] = '1'
    end
end
if #ids == 0 then return table.concat(codes) end
redis.call('HSET', MESSAGES, unpack(values))
redis.call('RPUSH', QUEUE, unpack(ids))
for priority, members in pairs(due) do redis.call('ZADD', LEVELS[priority], unpack(members)) end
if not mixed and (due['9'] or due['1']) then redis.call('HSET', META, 'mixed', 1) end
if #expiring > 0 then
    redis.call('ZADD', EXPIRIES, unpack(expiring))
    redis.call('HSET', META, 'expiring', 1)
end
wake(#ids)
return table.concat(codes)
