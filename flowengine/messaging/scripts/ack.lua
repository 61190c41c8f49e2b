--! keys: config queue messages tries reserved deadlines seen
--! uses: clock settings
-- arguments: tokens, as one text; answers a digit for each: 1, or 0 when the reservation does not hold
local answers, asked, tokens, ids, retried, seen, settled = {}, {}, {}, {}, {}, {}, {}
local size, window = settings('queue_size', 'dedup_window')
local remembered = stamp(NOW + window * 1000000)
for token in string.gmatch(ARGV[1], '%S+') do asked[#asked + 1] = token end
local found = redis.call('HMGET', RESERVED, unpack(asked))
local holds, until_when
for i, token in ipairs(asked) do
    local attempts, deadline, id = string.match(found[i] or '', '^(%d+):(%d+) (.*)$')
    -- Those of one batch have one deadline; it is compared once.
    if id and deadline ~= until_when then until_when, holds = deadline, tonumber(deadline) > NOW end
    if id and holds and not settled[token] then
        settled[token] = true
        tokens[#tokens + 1], ids[#ids + 1] = token, id
        seen[#seen + 1], seen[#seen + 2] = remembered, id
        if attempts ~= '1' then retried[#retried + 1] = id end
        answers[i] = '1'
    else
        answers[i] = '0'
    end
end
if #tokens == 0 then return table.concat(answers) end

-- What is acknowledged is most often the head of the queue, in its order: that is cut off in one go.
-- For a few it is not worth a look.
local cut = 0
if #ids > 4 then
    local head = redis.call('LRANGE', QUEUE, 0, #ids - 1)
    while cut < #ids and head[cut + 1] == ids[cut + 1] do cut = cut + 1 end
    if cut > 0 then redis.call('LTRIM', QUEUE, cut, -1) end
end
for i = cut + 1, #ids do redis.call('LREM', QUEUE, 1, ids[i]) end

redis.call('HDEL', RESERVED, unpack(tokens))
redis.call('ZREM', DEADLINES, unpack(tokens))
redis.call('HDEL', MESSAGES, unpack(ids))
if #retried > 0 then redis.call('HDEL', TRIES, unpack(retried)) end
if window > 0 then
    redis.call('ZADD', SEEN, unpack(seen))
    redis.call('PEXPIRE', SEEN, math.ceil(window * 1000))
    if redis.call('ZCARD', SEEN) > size then redis.call('ZREMRANGEBYRANK', SEEN, 0, -size - 1) end
end
return table.concat(answers)
