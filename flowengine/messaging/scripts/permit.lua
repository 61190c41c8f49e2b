--! keys: circuit probes circuits
--! uses: clock circuit
-- Arguments: name, timeout (µs), recovery timeout (µs), limit of probes, token, lease (µs).
-- Returns: granted, state, epoch, µs after which to ask again.
local timeout = tonumber(ARGV[2])
if state == 'closed' then return {1, state, epoch, 0} end
advance(timeout, tonumber(ARGV[3]))
if state == 'open' then return {0, state, epoch, changed + timeout - NOW} end
-- Idempotent: the client repeats a token if the response was lost.
if redis.call('ZSCORE', PROBES, ARGV[5]) or redis.call('ZCARD', PROBES) < tonumber(ARGV[4]) then
    redis.call('ZADD', PROBES, NOW + tonumber(ARGV[6]), ARGV[5])
    renew()
    return {1, state, epoch, 0}
end
-- A slot is free when a probe is reported, at the latest when its lease expires.
local first = redis.call('ZRANGE', PROBES, 0, 0, 'WITHSCORES')
return {0, state, epoch, math.max(math.min(tonumber(first[2]) - NOW, 1000000), 0)}
