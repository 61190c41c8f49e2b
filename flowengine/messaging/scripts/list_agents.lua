--! keys: agents_index capabilities_index lost names
--! uses: clock
-- further keys: those of agents; arguments for each: its key of capabilities, its endpoint
-- answers the time (µs) and the records; agents without one are forgotten
local answer = {NOW}
for i = 5, #KEYS do
    local record = redis.call('GET', KEYS[i])
    if record then
        answer[#answer + 1] = record
    else
        local place = 2 * (i - 4)
        redis.call('SREM', AGENTS_INDEX, KEYS[i])
        redis.call('SREM', CAPABILITIES_INDEX, ARGV[place - 1])
        redis.call('SREM', LOST, ARGV[place])
        redis.call('HDEL', NAMES, ARGV[place])
    end
end
return answer
