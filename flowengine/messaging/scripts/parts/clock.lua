-- The clock of Redis, in microseconds. `..` would round such a number, hence `stamp`, and as `now`
-- is as often written as reckoned with, it is there in both forms.
local clock = redis.call('TIME')
local NOW, now = clock[1] * 1000000 + clock[2], clock[1] .. string.sub('00000' .. clock[2], -6)
local function stamp(moment) return string.format('%.0f', moment) end
