--! keys: dlq dead
-- arguments: first, last; or an id. Answers id and letter of each, the oldest first.
local ids = #ARGV == 1 and {ARGV[1]} or redis.call('LRANGE', DLQ, ARGV[1], ARGV[2])
local answer = {}
for _, id in ipairs(ids) do
    local letter = redis.call('HGET', DEAD, id)
    if letter then answer[#answer + 1], answer[#answer + 2] = id, letter end
end
return answer
