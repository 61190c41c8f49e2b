--! keys: subs subscriptions meta
-- Arguments: subscription, types. Without types the subscription ends. An agent takes the types of all
-- its subscriptions; without a subscription it takes every type.
if ARGV[2] then
    redis.call('HSET', SUBSCRIPTIONS, ARGV[1], table.concat({unpack(ARGV, 2)}, ' '))
elseif redis.call('HDEL', SUBSCRIPTIONS, ARGV[1]) == 0 then
    return 0
end
redis.call('DEL', SUBS)
for _, types in ipairs(redis.call('HVALS', SUBSCRIPTIONS)) do
    for kind in string.gmatch(types, '%a+') do redis.call('SADD', SUBS, kind) end
end
-- A copy in META, which every send and receive reads.
local all = redis.call('SMEMBERS', SUBS)
if #all == 0 then
    redis.call('HDEL', META, 'subs')
else
    redis.call('HSET', META, 'subs', table.concat(all, ' '))
end
return 1
