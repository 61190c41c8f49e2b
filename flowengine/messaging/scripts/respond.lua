--! keys: awaited answer answer_wakeup
-- Arguments: the response. Returns 1; 0 if the requester no longer waits or has a response already.
local left = redis.call('PTTL', AWAITED)
if left <= 0 or not redis.call('SET', ANSWER, ARGV[1], 'NX', 'PX', left) then return 0 end
redis.call('RPUSH', ANSWER_WAKEUP, '1')
redis.call('PEXPIRE', ANSWER_WAKEUP, left)
return 1
