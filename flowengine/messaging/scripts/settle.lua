--! keys: circuit probes circuits
--! uses: clock circuit
-- Arguments: name, outcome (success, failure, neither), token, epoch, failure threshold, success
-- threshold, recovery timeout (µs). Returns the state.
local outcome, token = ARGV[2], ARGV[3]
local lease = redis.call('ZSCORE', PROBES, token)
if lease then redis.call('ZREM', PROBES, token) end
if tonumber(ARGV[4]) ~= epoch then return state end
if state == 'closed' then
    if outcome == 'success' and failures > 0 then
        redis.call('HSET', CIRCUIT, 'failures', 0)
    elseif outcome == 'failure' then
        failures = failures + 1
        redis.call('HSET', CIRCUIT, 'state', state, 'epoch', epoch, 'failures', failures)
        redis.call('SADD', CIRCUITS, ARGV[1])
        renew()
        if failures >= tonumber(ARGV[5]) then transition('open', NOW) end
    end
    return state
end
-- A probe whose lease has expired is ignored: its slot may belong to another probe.
if state ~= 'half_open' or not lease or tonumber(lease) <= NOW then return state end
if outcome == 'failure' then
    failures = failures + 1
    transition('open', NOW)
elseif outcome == 'success' and NOW < changed + tonumber(ARGV[7]) then
    if successes + 1 >= tonumber(ARGV[6]) then
        transition('closed', NOW)
    else
        redis.call('HSET', CIRCUIT, 'successes', successes + 1)
    end
end
return state
