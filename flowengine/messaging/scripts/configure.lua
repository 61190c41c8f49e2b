--! keys: config
-- Arguments: names and values. Returns the whole configuration.
if #ARGV > 0 then redis.call('HSET', CONFIG, unpack(ARGV)) end
return redis.call('HGETALL', CONFIG)
