--! keys: reserved deadlines
--! uses: clock batch reservation
-- Arguments: token, visibility (µs). Returns the new deadline (µs), or 0. A message of a batch gets a
-- reservation of its own: the deadline of the others stays.
local attempts, id = end_reservation(ARGV[1])
if not id then return 0 end
local deadline = NOW + tonumber(ARGV[2])
redis.call('HSET', RESERVED, ARGV[1], attempts .. ':' .. stamp(deadline) .. ' ' .. id)
redis.call('ZADD', DEADLINES, stamp(deadline), ARGV[1])
return deadline
