-- The clock of Redis, in microseconds. `..` would round such a number, hence `stamp`.
local clock = redis.call('TIME')
local NOW = clock[1] * 1000000 + clock[2]
local function stamp(moment) return string.format('%.0f', moment) end
