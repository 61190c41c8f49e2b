--! keys: config queue messages tries expiries seen subs bell endpoints dlq dead stats high normal low
--! uses: clock settings letters bury
-- arguments: endpoint, delay (µs), lifetime (µs or 0), then for each message: id, priority, type, body
-- answers for each message: 1 taken in, 2 a duplicate, 3 full, 4 not subscribed
local delay, lifetime = tonumber(ARGV[2]), tonumber(ARGV[3])
local size, remembers = setting('queue_size'), setting('dedup_window') > 0
local length = redis.call('LLEN', QUEUE)
if length + (#ARGV - 3) / 4 > size and bury_expired(1000) > 0 then
    length = redis.call('LLEN', QUEUE)
end
if length == 0 then redis.call('SADD', ENDPOINTS, ARGV[1]) end

local expires = lifetime > 0 and stamp(NOW + lifetime) or '0'
local wanted
for _, kind in ipairs(redis.call('SMEMBERS', SUBS)) do
    wanted = wanted or {}
    wanted[kind] = true
end

local answers, accepted = {}, 0
for i = 4, #ARGV, 4 do
    local id, priority, kind = ARGV[i], ARGV[i + 1], ARGV[i + 2]
    local answer
    if wanted and not wanted[kind] then
        answer = 4
    elseif redis.call('HEXISTS', MESSAGES, id) == 1 then
        answer = 2
    elseif remembers and tonumber(redis.call('ZSCORE', SEEN, id) or 0) > NOW then
        answer = 2
    elseif length >= size then
        answer = 3
    else
        local head = {level = LEVELS[priority], expires = tonumber(expires)}
        local value = table.concat({priority, kind, stamp(NOW), expires, ARGV[i + 3]}, ' ')
        redis.call('HSET', MESSAGES, id, value)
        redis.call('RPUSH', QUEUE, id)
        -- Equal times would be ordered by id, so those of one batch are a microsecond apart.
        schedule(id, head, NOW + delay + accepted)
        length, accepted, answer = length + 1, accepted + 1, 1
    end
    answers[#answers + 1] = answer
end
if accepted > 0 then ring(accepted) end
return answers
