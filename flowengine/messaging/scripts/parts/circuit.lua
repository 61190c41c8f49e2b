-- A circuit is a hash: state, failures, successes, changed (µs), epoch (the number of changes).
-- Missing is closed. What was not touched for a day is forgotten.
local circuit = redis.call('HMGET', CIRCUIT, 'state', 'failures', 'successes', 'changed', 'epoch')
local state, changed = circuit[1] or 'closed', tonumber(circuit[4] or 0)
local failures, successes = tonumber(circuit[2] or 0), tonumber(circuit[3] or 0)
local epoch = tonumber(circuit[5] or 0)

local function keep()
    redis.call('EXPIRE', CIRCUIT, 86400)
    redis.call('EXPIRE', PROBES, 86400)
end

-- Every change begins a new epoch: what calls of an old one report is not about this one.
-- Probes of an old one stay counted, for they may still be under way.
local function become(new, moment)
    state, changed, failures, successes, epoch = new, moment, 0, 0, epoch + 1
    redis.call('HSET', CIRCUIT, 'state', new, 'failures', 0, 'successes', 0,
        'changed', moment, 'epoch', epoch)
    keep()
end

-- What time alone changes: an opened breaker becomes half open, a recovery runs out.
local function let_time_pass(timeout, recovery)
    if state == 'half_open' and NOW >= changed + recovery then become('open', changed + recovery) end
    if state == 'open' and NOW >= changed + timeout then become('half_open', NOW) end
    redis.call('ZREMRANGEBYSCORE', PROBES, '-inf', NOW)
end
