--! keys: beats lost names
--! uses: clock events
-- Publish each agent whose heartbeats have stopped, once over all registries.
-- Arguments: channel, limit. Returns the number of published agents.
local expired = redis.call('ZRANGEBYSCORE', BEATS, '-inf', NOW, 'LIMIT', 0, ARGV[2])
local count = 0
for _, endpoint in ipairs(expired) do
    redis.call('ZREM', BEATS, endpoint)
    if redis.call('SADD', LOST, endpoint) == 1 then
        publish(ARGV[1], 'lost', redis.call('HGET', NAMES, endpoint))
        count = count + 1
    end
end
return count
