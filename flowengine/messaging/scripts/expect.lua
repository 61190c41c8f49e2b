--! keys: awaited
-- Arguments: milliseconds for which the requester waits for a response.
redis.call('SET', AWAITED, '1', 'PX', ARGV[1])
return 1
