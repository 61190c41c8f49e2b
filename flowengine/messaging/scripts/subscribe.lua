--! keys: subs subscriptions meta
-- arguments: subscription, types. No types: the subscription ends. An agent takes what any of
-- its subscriptions names, and everything when it has none.
if ARGV[2] then
    redis.call('HSET', SUBSCRIPTIONS, ARGV[1], table.concat({unpack(ARGV, 2)}, ' '))
elseif redis.call('HDEL', SUBSCRIPTIONS, ARGV[1]) == 0 then
    return 0
end
redis.call('DEL', SUBS)
for _, types in ipairs(redis.call('HVALS', SUBSCRIPTIONS)) do
    for kind in string.gmatch(types, '%a+') do redis.call('SADD', SUBS, kind) end
end
-- Once more, in one place with what every send and receive asks for.
local all = redis.call('SMEMBERS', SUBS)
if #all == 0 then
    redis.call('HDEL', META, 'subs')
else
    redis.call('HSET', META, 'subs', table.concat(all, ' '))
end
return 1
