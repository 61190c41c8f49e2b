--! keys: reserved deadlines
--! uses: clock reservation
-- arguments: token, visibility (µs); answers the new deadline (µs), or 0
if not reservation(ARGV[1]) then return 0 end
local deadline = NOW + tonumber(ARGV[2])
redis.call('ZADD', DEADLINES, deadline, ARGV[1])
return deadline
