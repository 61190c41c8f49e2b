--! keys: dlq dead
-- Arguments: first, last; or an id. Returns id and dead letter of each, the oldest first.
local ids = #ARGV == 1 and {ARGV[1]} or redis.call('LRANGE', DLQ, ARGV[1], ARGV[2])
local response = {}
for _, id in ipairs(ids) do
    local letter = redis.call('HGET', DEAD, id)
    if letter then response[#response + 1], response[#response + 2] = id, letter end
end
return response
