--! keys: config meta queue messages tries reserved deadlines expiries waiting wakeup dlq dead high normal low
--! uses: clock settings levels message wake dead_letter batch reservation
-- Arguments: token, failure, error, a random number from 0 to 1 for the jitter.
-- Returns {0, 0} if there is no valid reservation, {1, backoff (µs)}, or {2, 0} for a dead letter.
local token, failure, error = ARGV[1], ARGV[2], ARGV[3]
local attempts, id = end_reservation(token)
if not id then return {0, 0} end
local value = redis.call('HGET', MESSAGES, id)
local head = header(value)
if not head then
    dead_letter(id, value, 'permanent', UNREADABLE, attempts)
    return {2, 0}
end
local retries, backoff, factor, max, jitter = settings(
    'retry_attempts', 'backoff_base', 'backoff_factor', 'backoff_max', 'backoff_jitter')
if failure == 'permanent' or attempts > retries then
    dead_letter(id, value, failure, error, attempts)
    return {2, 0}
end
if backoff > 0 then
    backoff = math.min(backoff * factor ^ (attempts - 1), max) * (1 - jitter * tonumber(ARGV[4]))
end
record_try(id, attempts, error)
schedule(id, head, NOW + math.floor(backoff * 1000000))
wake(1)
return {1, math.floor(backoff * 1000000)}
