--! keys: agent capabilities agents_index capabilities_index beats lost names
--! uses: clock events
-- arguments: `register`, `exclusive` or `beat`; endpoint, incarnation, ttl (µs), kept (ms), channel,
-- the record without its first brace, capabilities, how events name it
-- answers 0 and the record when the id is another's, 1, or 2 and the record of who was replaced
local mode, endpoint, incarnation, ttl, kept, channel = unpack(ARGV, 1, 6)
local known = redis.call('GET', AGENT)
local other = known and cjson.decode(known)['incarnation'] ~= incarnation
if other and mode == 'beat' then return {0, known} end
local alive = tonumber(redis.call('ZSCORE', BEATS, endpoint) or 0) > NOW
if other and alive and mode == 'exclusive' then return {0, known} end

local record = '{"last_heartbeat":' .. string.format('%.6f', NOW / 1000000) .. ',' .. ARGV[7]
redis.call('SET', AGENT, record, 'PX', kept)
redis.call('SET', CAPABILITIES, ARGV[8], 'PX', kept)
redis.call('SADD', AGENTS_INDEX, AGENT)
redis.call('SADD', CAPABILITIES_INDEX, CAPABILITIES)
redis.call('ZADD', BEATS, NOW + tonumber(ttl), endpoint)
redis.call('HSET', NAMES, endpoint, ARGV[9])
local lost = redis.call('SREM', LOST, endpoint) == 1
if mode ~= 'beat' then
    publish(channel, 'registered', ARGV[9])
elseif lost or not known then
    publish(channel, 'recovered', ARGV[9])
end
if other and alive then return {2, known} end
return {1}
