--! keys: dlq dead meta
-- Arguments: limit, ids; without ids the oldest. Returns the number of deleted dead letters.
local ids = {unpack(ARGV, 2)}
if #ids == 0 then ids = redis.call('LRANGE', DLQ, 0, tonumber(ARGV[1]) - 1) end
local count = 0
for _, id in ipairs(ids) do
    if redis.call('HDEL', DEAD, id) == 1 then
        redis.call('LREM', DLQ, 1, id)
        count = count + 1
    end
end
if redis.call('LLEN', DLQ) == 0 then redis.call('HDEL', META, 'dead_dropped') end
return count
