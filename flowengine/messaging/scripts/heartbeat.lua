--! keys: agent capabilities agents_index capabilities_index beats lost names
--! uses: clock events
-- Arguments: `register`, `exclusive` or `beat`; endpoint, incarnation, ttl (µs), retention (ms),
-- channel, the record without its first brace, capabilities, the agent's fields in events.
-- Returns {0, record} if another process has the id, {1}, or {2, record} if it replaced another.
local mode, endpoint, incarnation, ttl, retention, channel = unpack(ARGV, 1, 6)
local stored = redis.call('GET', AGENT)
local other = stored and cjson.decode(stored)['incarnation'] ~= incarnation
if other and mode == 'beat' then return {0, stored} end
local alive = tonumber(redis.call('ZSCORE', BEATS, endpoint) or 0) > NOW
if other and alive and mode == 'exclusive' then return {0, stored} end

local record = '{"last_heartbeat":' .. string.format('%.6f', NOW / 1000000) .. ',' .. ARGV[7]
redis.call('SET', AGENT, record, 'PX', retention)
redis.call('SET', CAPABILITIES, ARGV[8], 'PX', retention)
redis.call('SADD', AGENTS_INDEX, AGENT)
redis.call('SADD', CAPABILITIES_INDEX, CAPABILITIES)
redis.call('ZADD', BEATS, NOW + tonumber(ttl), endpoint)
redis.call('HSET', NAMES, endpoint, ARGV[9])
local lost = redis.call('SREM', LOST, endpoint) == 1
if mode ~= 'beat' then
    publish(channel, 'registered', ARGV[9])
elseif lost or not stored then
    publish(channel, 'recovered', ARGV[9])
end
if other and alive then return {2, stored} end
return {1}
