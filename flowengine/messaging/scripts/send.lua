--! keys: config meta queue messages expiries seen waiting bell endpoints high normal low
--! uses: clock settings levels bell
-- arguments: endpoint, delay (µs), lifetime (µs or 0), then for each message: id, priority, type, body
-- answers for each message: 1 taken in, 2 a duplicate, 3 full, 4 not subscribed
local delay, lifetime = tonumber(ARGV[2]), tonumber(ARGV[3])
local size, window = settings('queue_size', 'dedup_window')
local types = redis.call('HGET', META, 'subs')
local length = redis.call('LLEN', QUEUE)
if length == 0 then redis.call('SADD', ENDPOINTS, ARGV[1]) end

local expires = lifetime > 0 and stamp(NOW + lifetime) or '0'
local before = ' ' .. stamp(NOW) .. ' ' .. expires .. ' '
local remembered = {}
if window > 0 then
    local asked = {}
    for i = 4, #ARGV, 4 do asked[#asked + 1] = ARGV[i] end
    remembered = redis.call('ZMSCORE', SEEN, unpack(asked))
end
local answers, ids, due, expiring = {}, {}, {}, {}
for i = 4, #ARGV, 4 do
    local id, priority, kind = ARGV[i], ARGV[i + 1], ARGV[i + 2]
    local answer = 1
    if types and not string.find(types, kind, 1, true) then
        answer = 4
    elseif tonumber(remembered[i / 4] or 0) > NOW then
        answer = 2
    elseif length + #ids >= size then
        answer = redis.call('HEXISTS', MESSAGES, id) == 1 and 2 or 3
    elseif redis.call('HSETNX', MESSAGES, id, priority .. ' ' .. kind .. before .. ARGV[i + 3]) == 0 then
        answer = 2
    else
        -- Equal times would be ordered by id, so those of one batch are a microsecond apart.
        local level = due[priority] or {}
        level[#level + 1], level[#level + 2] = NOW + delay + #ids, id
        due[priority] = level
        ids[#ids + 1] = id
        if lifetime > 0 then expiring[#expiring + 1], expiring[#expiring + 2] = expires, id end
    end
    answers[#answers + 1] = answer
end
if #ids == 0 then return answers end
redis.call('RPUSH', QUEUE, unpack(ids))
for priority, members in pairs(due) do redis.call('ZADD', LEVELS[priority], unpack(members)) end
if #expiring > 0 then
    redis.call('ZADD', EXPIRIES, unpack(expiring))
    redis.call('HSET', META, 'expiring', 1)
end
ring(#ids)
return answers
