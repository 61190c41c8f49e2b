--! keys: agent capabilities agents_index capabilities_index beats lost names
--! uses: clock events
-- Arguments: endpoint, incarnation (empty: any), channel.
-- Returns 1; 0 if the agent is not registered, or has another incarnation.
local endpoint, incarnation = ARGV[1], ARGV[2]
local stored = redis.call('GET', AGENT)
if incarnation ~= '' and stored and cjson.decode(stored)['incarnation'] ~= incarnation then return 0 end
local fields = redis.call('HGET', NAMES, endpoint)
redis.call('DEL', AGENT, CAPABILITIES)
redis.call('SREM', AGENTS_INDEX, AGENT)
redis.call('SREM', CAPABILITIES_INDEX, CAPABILITIES)
redis.call('SREM', LOST, endpoint)
redis.call('HDEL', NAMES, endpoint)
if redis.call('ZREM', BEATS, endpoint) == 0 and not stored then return 0 end
publish(ARGV[3], 'deregistered', fields)
return 1
