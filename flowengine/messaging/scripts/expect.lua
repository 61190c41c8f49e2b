--! keys: awaited
-- arguments: milliseconds. Somebody waits for an answer, at most so long.
redis.call('SET', AWAITED, '1', 'PX', ARGV[1])
return 1
