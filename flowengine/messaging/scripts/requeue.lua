--! keys: config meta queue messages expiries waiting wakeup endpoints dlq dead high normal low
--! uses: clock settings levels message wake
-- Arguments: endpoint, limit, ids; without ids the oldest. Returns the number of requeued messages.
-- The attempts and the expiry of a requeued message are reset.
local ids = {unpack(ARGV, 3)}
if #ids == 0 then ids = redis.call('LRANGE', DLQ, 0, tonumber(ARGV[2]) - 1) end
local room = settings('queue_size') - redis.call('LLEN', QUEUE)
local count = 0
for _, id in ipairs(ids) do
    local letter = redis.call('HGET', DEAD, id)
    local length, rest = string.match(letter or '', '^%a+ %d+ %d+ (%d+) ()')
    local value = length and string.sub(letter, rest + tonumber(length))
    local head = header(value)
    if head and count < room and redis.call('HEXISTS', MESSAGES, id) == 0 then
        redis.call('HDEL', DEAD, id)
        redis.call('LREM', DLQ, 1, id)
        head.expires = 0
        value = string.gsub(value, '^(%d %a+ %d+) %d+ ', '%1 0 ', 1)
        redis.call('HSET', MESSAGES, id, value)
        redis.call('RPUSH', QUEUE, id)
        schedule(id, head, NOW + count)
        count = count + 1
    end
end
if count > 0 then
    redis.call('SADD', ENDPOINTS, ARGV[1])
    wake(count)
end
return count
