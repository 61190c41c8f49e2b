--! keys: config queue messages tries reserved deadlines expiries bell turns endpoints dlq dead stats high normal low
--! uses: clock settings letters bury reclaim
-- arguments: endpoint, most; answers: returned, dead, 1 when there may be more
local most = tonumber(ARGV[2])
local returned, dead, looked = reclaim(most)
local expired = bury_expired(most)
if returned > 0 then ring(returned) end
if redis.call('LLEN', QUEUE) == 0 then
    redis.call('DEL', BELL, TURNS)
    if redis.call('LLEN', DLQ) == 0 then redis.call('SREM', ENDPOINTS, ARGV[1]) end
end
return {returned, dead + expired, (looked == most or expired == most) and 1 or 0}
