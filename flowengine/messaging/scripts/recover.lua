--! keys: config meta queue messages tries reserved deadlines expiries waiting bell endpoints dlq dead high normal low
--! uses: clock settings levels letters bell bury batch reservation reclaim
-- arguments: endpoint, most; answers: returned, dead, 1 when there may be more
local most = tonumber(ARGV[2])
local returned, dead, more = reclaim(most)
local late = bury_expired(most)
ring(returned)
if redis.call('LLEN', QUEUE) == 0 then
    -- An agent with nothing to receive leaves nothing behind.
    redis.call('DEL', BELL)
    redis.call('HDEL', META, 'turns', 'expiring', 'retried', 'mixed')
    if redis.call('LLEN', DLQ) == 0 then redis.call('SREM', ENDPOINTS, ARGV[1]) end
end
return {returned, dead + late, (more or late == most) and 1 or 0}
