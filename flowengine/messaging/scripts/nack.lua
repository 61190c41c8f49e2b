--! keys: config meta queue messages tries reserved deadlines expiries waiting bell dlq dead high normal low
--! uses: clock settings levels letters bell bury batch reservation
-- arguments: token, failure, error, a number between 0 and 1 for the jitter
-- answers: 0 when the reservation does not hold; 1 and the wait (µs); 2 for a dead letter
local token, failure, error = ARGV[1], ARGV[2], ARGV[3]
local attempts, id = release(token)
if not id then return {0, 0} end
local value = redis.call('HGET', MESSAGES, id)
local head = header(value)
if not head then
    bury(id, value, 'permanent', POISON, attempts)
    return {2, 0}
end
local retries, wait, factor, longest, jitter = settings(
    'retry_attempts', 'backoff_base', 'backoff_factor', 'backoff_max', 'backoff_jitter')
if failure == 'permanent' or attempts > retries then
    bury(id, value, failure, error, attempts)
    return {2, 0}
end
if wait > 0 then
    wait = math.min(wait * factor ^ (attempts - 1), longest) * (1 - jitter * tonumber(ARGV[4]))
end
tried(id, attempts, error)
schedule(id, head, NOW + math.floor(wait * 1000000))
ring(1)
return {1, math.floor(wait * 1000000)}
