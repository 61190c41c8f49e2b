--! keys: agent capabilities agents_index capabilities_index beats lost names
--! uses: clock events
-- arguments: endpoint, incarnation (or nothing: whoever it is), channel
-- answers 1; 0 when it is not there, or another's
local endpoint, incarnation = ARGV[1], ARGV[2]
local known = redis.call('GET', AGENT)
if incarnation ~= '' and known and cjson.decode(known)['incarnation'] ~= incarnation then return 0 end
local named = redis.call('HGET', NAMES, endpoint)
redis.call('DEL', AGENT, CAPABILITIES)
redis.call('SREM', AGENTS_INDEX, AGENT)
redis.call('SREM', CAPABILITIES_INDEX, CAPABILITIES)
redis.call('SREM', LOST, endpoint)
redis.call('HDEL', NAMES, endpoint)
if redis.call('ZREM', BEATS, endpoint) == 0 and not known then return 0 end
publish(ARGV[3], 'deregistered', named)
return 1
