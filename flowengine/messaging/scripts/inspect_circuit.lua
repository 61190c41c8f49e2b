--! keys: circuit probes circuits
--! uses: clock circuit
-- arguments: name, timeout (µs), a state to put it into or nothing
-- answers: state, failures, successes, probes, epoch, µs until it lets probes through
if ARGV[3] then
    redis.call('SADD', CIRCUITS, ARGV[1])
    become(ARGV[3], NOW)
end
local left = state == 'open' and math.max(changed + tonumber(ARGV[2]) - NOW, 0) or 0
return {state, failures, successes, redis.call('ZCOUNT', PROBES, NOW, '+inf'), epoch, left}
