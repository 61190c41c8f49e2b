--! keys: config meta queue messages seen waiting wakeup endpoints normal
--! uses: wake
-- A shorter `send.lua` for one message of NORMAL priority without delay and expiry.
-- Arguments: endpoint, type, id, body. Returns the digit.
local id = ARGV[3]
local config = redis.call('HMGET', CONFIG, 'queue_size', 'dedup_window')
local types = redis.call('HGET', META, 'subs')
if types and not string.find(types, ARGV[2], 1, true) then return '4' end
local clock = redis.call('TIME')
local now = clock[1] .. string.sub('00000' .. clock[2], -6)
if tonumber(config[2] or DEFAULTS['dedup_window']) > 0 then
    local forget_at = redis.call('ZSCORE', SEEN, id)
    if forget_at and tonumber(forget_at) > tonumber(now) then return '2' end
end
-- Append first, and remove again if the queue is full or has the id: the script is atomic.
local length = redis.call('RPUSH', QUEUE, id)
if length > tonumber(config[1] or DEFAULTS['queue_size']) then
    redis.call('RPOP', QUEUE)
    return redis.call('HEXISTS', MESSAGES, id) == 1 and '2' or '3'
end
if redis.call('HSETNX', MESSAGES, id, '5 ' .. ARGV[2] .. ' ' .. now .. ' 0 ' .. ARGV[4]) == 0 then
    redis.call('RPOP', QUEUE)
    return '2'
end
redis.call('ZADD', NORMAL, now, id)
if length == 1 then redis.call('SADD', ENDPOINTS, ARGV[1]) end
wake(1)
return '1'
