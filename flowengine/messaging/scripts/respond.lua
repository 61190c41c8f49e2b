--! keys: awaited answer answer_bell
-- arguments: the answer. Answers 1; 0 when nobody waits any more, or somebody was quicker.
local left = redis.call('PTTL', AWAITED)
if left <= 0 or not redis.call('SET', ANSWER, ARGV[1], 'NX', 'PX', left) then return 0 end
redis.call('RPUSH', ANSWER_BELL, '1')
redis.call('PEXPIRE', ANSWER_BELL, left)
return 1
