--! keys: beats lost names
--! uses: clock events
-- arguments: channel, most. Tell, once for all who look, of agents whose beats have stopped.
local gone = redis.call('ZRANGEBYSCORE', BEATS, '-inf', NOW, 'LIMIT', 0, ARGV[2])
local told = 0
for _, endpoint in ipairs(gone) do
    redis.call('ZREM', BEATS, endpoint)
    if redis.call('SADD', LOST, endpoint) == 1 then
        publish(ARGV[1], 'lost', redis.call('HGET', NAMES, endpoint))
        told = told + 1
    end
end
return told
