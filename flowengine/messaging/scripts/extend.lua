--! keys: reserved deadlines
--! uses: clock batch reservation
-- arguments: token, visibility (µs); answers the new deadline (µs), or 0. One of a batch has a
-- reservation of its own from now on: the deadline of the others stays.
local attempts, id = release(ARGV[1])
if not id then return 0 end
local deadline = NOW + tonumber(ARGV[2])
redis.call('HSET', RESERVED, ARGV[1], attempts .. ':' .. stamp(deadline) .. ' ' .. id)
redis.call('ZADD', DEADLINES, stamp(deadline), ARGV[1])
return deadline
