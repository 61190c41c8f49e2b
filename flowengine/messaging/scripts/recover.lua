--! keys: config meta queue messages tries reserved deadlines expiries waiting wakeup endpoints dlq dead high normal low
--! uses: clock settings levels message wake dead_letter batch reservation reclaim
-- Arguments: endpoint, limit. Returns: returned messages, dead letters, 1 if there may be more.
local limit = tonumber(ARGV[2])
local returned, dead, more = reclaim(limit)
local late = dead_letter_expired(limit)
wake(returned)
if redis.call('LLEN', QUEUE) == 0 then
    -- Delete the keys of an agent without messages.
    redis.call('DEL', WAKEUP)
    redis.call('HDEL', META, 'turns', 'expiring', 'retried', 'mixed')
    if redis.call('LLEN', DLQ) == 0 then redis.call('SREM', ENDPOINTS, ARGV[1]) end
end
return {returned, dead + late, (more or late == limit) and 1 or 0}
