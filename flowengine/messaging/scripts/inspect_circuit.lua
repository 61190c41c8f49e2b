--! keys: circuit probes circuits
--! uses: clock circuit
-- Arguments: name, timeout (µs), optionally a state to force.
-- Returns: state, failures, successes, probes, epoch, µs until probes are permitted.
if ARGV[3] then
    redis.call('SADD', CIRCUITS, ARGV[1])
    transition(ARGV[3], NOW)
end
local left = state == 'open' and math.max(changed + tonumber(ARGV[2]) - NOW, 0) or 0
return {state, failures, successes, redis.call('ZCOUNT', PROBES, NOW, '+inf'), epoch, left}
