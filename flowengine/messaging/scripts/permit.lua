--! keys: circuit probes circuits
--! uses: clock circuit
-- arguments: name, timeout (µs), recovery (µs), most probes, token, lease (µs)
-- answers: granted, state, epoch, µs after which to ask again
local timeout = tonumber(ARGV[2])
if state == 'closed' then return {1, state, epoch, 0} end
let_time_pass(timeout, tonumber(ARGV[3]))
if state == 'open' then return {0, state, epoch, changed + timeout - NOW} end
-- The same token again: the answer was lost on its way.
if redis.call('ZSCORE', PROBES, ARGV[5]) or redis.call('ZCARD', PROBES) < tonumber(ARGV[4]) then
    redis.call('ZADD', PROBES, NOW + tonumber(ARGV[6]), ARGV[5])
    keep()
    return {1, state, epoch, 0}
end
-- A probe may end at any moment, and its lease at the latest.
local first = redis.call('ZRANGE', PROBES, 0, 0, 'WITHSCORES')
return {0, state, epoch, math.max(math.min(tonumber(first[2]) - NOW, 1000000), 0)}
