-- The state machine of flowengine/circuit_breaker.py, on a hash: state, failures, successes,
-- changed (time of the last transition, µs), epoch (number of transitions). A missing hash is a
-- closed breaker. It expires a day after its last use.
local circuit = redis.call('HMGET', CIRCUIT, 'state', 'failures', 'successes', 'changed', 'epoch')
local state, changed = circuit[1] or 'closed', tonumber(circuit[4] or 0)
local failures, successes = tonumber(circuit[2] or 0), tonumber(circuit[3] or 0)
local epoch = tonumber(circuit[5] or 0)

local function renew()
    redis.call('EXPIRE', CIRCUIT, 86400)
    redis.call('EXPIRE', PROBES, 86400)
end

-- Each transition starts an epoch: outcomes of calls from an earlier epoch are ignored. Their
-- probes stay counted, since they may still be under way.
-- The failures that opened it are kept until it closes.
local function transition(new, moment)
    state, changed, successes, epoch = new, moment, 0, epoch + 1
    if new == 'closed' then failures = 0 end
    redis.call('HSET', CIRCUIT, 'state', new, 'failures', failures, 'successes', 0,
        'changed', moment, 'epoch', epoch)
    renew()
end

-- Make the transitions that depend on time alone, and drop probes whose lease has expired.
local function advance(timeout, recovery)
    if state == 'half_open' and NOW >= changed + recovery then transition('open', changed + recovery) end
    if state == 'open' and NOW >= changed + timeout then transition('half_open', NOW) end
    redis.call('ZREMRANGEBYSCORE', PROBES, '-inf', NOW)
end
