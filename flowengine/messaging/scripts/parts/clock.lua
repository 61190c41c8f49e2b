-- The time of the Redis server in microseconds: NOW as a number, `now` as a string. `..` would round
-- such a number; `stamp` formats it exactly.
local clock = redis.call('TIME')
local NOW, now = clock[1] * 1000000 + clock[2], clock[1] .. string.sub('00000' .. clock[2], -6)
local function stamp(moment) return string.format('%.0f', moment) end
