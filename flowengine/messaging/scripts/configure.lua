--! keys: config
-- arguments: names and values; answers the whole configuration as it is now
if #ARGV > 0 then redis.call('HSET', CONFIG, unpack(ARGV)) end
return redis.call('HGETALL', CONFIG)
