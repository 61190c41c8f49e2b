--! keys: meta messages reserved deadlines expiries waiting wakeup high normal low
--! uses: clock levels message wake batch reservation
-- Return the messages of a receive whose caller was cancelled: at once, and without counting an
-- attempt, since no consumer has seen them. Arguments: name of the reservation, seconds to remember
-- it. Returns the number of returned messages.
local name = ARGV[1]
local stored = redis.call('HGET', RESERVED, name)
if not stored then
    -- The receive may still be on its way over the connection that the cancellation closed. This
    -- entry makes it return nothing.
    redis.call('HSET', RESERVED, name, CANCELLED)
    redis.call('ZADD', DEADLINES, stamp(NOW + ARGV[2] * 1000000), name)
    return 0
end
local ids = {string.match(stored, '^%d+:%d+ (.*)$')}
if string.sub(name, -1) == '+' then
    ids = {}
    local _, places = read(stored)
    for _, id in ipairs(places) do
        if id then ids[#ids + 1] = id end
    end
end
for place, id in ipairs(ids) do
    -- An unreadable message goes back too: the next receive makes it a dead letter.
    local head = header(redis.call('HGET', MESSAGES, id)) or {level = NORMAL, sent = NOW, expires = 0}
    -- Ordered by the time of sending: a returned message stays ahead of younger ones.
    schedule(id, head, stamp(head.sent + place - 1))
end
forget(name)
wake(#ids)
return #ids
