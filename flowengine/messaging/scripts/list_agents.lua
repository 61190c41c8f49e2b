--! keys: agents_index capabilities_index lost names
--! uses: clock
-- Further keys: those of agents. Arguments for each: its capabilities key, its endpoint.
-- Returns the time (µs) and the records. Removes agents whose record has expired from the indexes.
local response = {NOW}
for i = 5, #KEYS do
    local record = redis.call('GET', KEYS[i])
    if record then
        response[#response + 1] = record
    else
        local place = 2 * (i - 4)
        redis.call('SREM', AGENTS_INDEX, KEYS[i])
        redis.call('SREM', CAPABILITIES_INDEX, ARGV[place - 1])
        redis.call('SREM', LOST, ARGV[place])
        redis.call('HDEL', NAMES, ARGV[place])
    end
end
return response
