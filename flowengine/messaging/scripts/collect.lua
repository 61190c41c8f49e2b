--! keys: awaited answer answer_wakeup
-- Arguments: 1 to stop waiting. Returns the response, or nil. Reading does not delete it, so that a
-- lost connection loses nothing: it expires.
local answer = redis.call('GET', ANSWER)
if ARGV[1] == '1' then redis.call('DEL', AWAITED, ANSWER, ANSWER_WAKEUP) end
return answer
