--! keys: config queue messages tries reserved deadlines seen
--! uses: clock settings
-- arguments: tokens; answers for each: 1, or 0 when the reservation does not hold
local answers, tokens, ids, retried, seen = {}, {}, {}, {}, {}
local size, window = settings('queue_size', 'dedup_window')
local remembered = stamp(NOW + window * 1000000)
local found = redis.call('HMGET', RESERVED, unpack(ARGV))
local deadlines = redis.call('ZMSCORE', DEADLINES, unpack(ARGV))
local settled = {}
for i, token in ipairs(ARGV) do
    local attempts, id = string.match(found[i] or '', '^(%d+) (.*)$')
    if id and deadlines[i] and tonumber(deadlines[i]) > NOW and not settled[token] then
        settled[token] = true
        tokens[#tokens + 1], ids[#ids + 1] = token, id
        seen[#seen + 1], seen[#seen + 2] = remembered, id
        if attempts ~= '1' then retried[#retried + 1] = id end
        redis.call('LREM', QUEUE, 1, id)
        answers[i] = 1
    else
        answers[i] = 0
    end
end
if #tokens == 0 then return answers end
redis.call('HDEL', RESERVED, unpack(tokens))
redis.call('ZREM', DEADLINES, unpack(tokens))
redis.call('HDEL', MESSAGES, unpack(ids))
if #retried > 0 then redis.call('HDEL', TRIES, unpack(retried)) end
if window > 0 then
    redis.call('ZADD', SEEN, unpack(seen))
    redis.call('PEXPIRE', SEEN, math.ceil(window * 1000))
    if redis.call('ZCARD', SEEN) > size then redis.call('ZREMRANGEBYRANK', SEEN, 0, -size - 1) end
end
return answers
