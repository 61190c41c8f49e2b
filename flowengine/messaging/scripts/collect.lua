--! keys: awaited answer answer_bell
-- arguments: 1 to stop waiting. Answers what was answered, or nothing. It is not taken away, so
-- that nothing is lost with a connection: it goes when its time is over.
local answer = redis.call('GET', ANSWER)
if ARGV[1] == '1' then redis.call('DEL', AWAITED, ANSWER, ANSWER_BELL) end
return answer
