-- Make a dead letter of a message that is neither scheduled nor reserved.
-- A dead letter is `<failure> <attempts> <died, µs> <length of the error> <error><message>`.
local function dead_letter(id, value, failure, error, attempts)
    redis.call('HDEL', MESSAGES, id)
    redis.call('HDEL', TRIES, id)
    redis.call('ZREM', EXPIRIES, id)
    redis.call('LREM', QUEUE, 1, id)
    local letter = string.format('%s %d %s %d ', failure, attempts, stamp(NOW), #error)
        .. error .. (value or '')
    if redis.call('HSET', DEAD, id, letter) == 0 then redis.call('LREM', DLQ, 1, id) end
    redis.call('RPUSH', DLQ, id)
    for _ = 1, redis.call('LLEN', DLQ) - settings('dlq_size') do
        redis.call('HDEL', DEAD, redis.call('LPOP', DLQ))
        redis.call('HINCRBY', META, 'dead_dropped', 1)
    end
end

local UNREADABLE = 'the stored message cannot be read'

-- Make dead letters of expired messages, except reserved ones.
local function dead_letter_expired(limit)
    local ids = redis.call('ZRANGEBYSCORE', EXPIRIES, '-inf', NOW, 'LIMIT', 0, limit)
    for _, id in ipairs(ids) do
        local value = redis.call('HGET', MESSAGES, id)
        for _, level in ipairs({HIGH, NORMAL, LOW}) do redis.call('ZREM', level, id) end
        local attempts = string.match(redis.call('HGET', TRIES, id) or '', '^(%d+) ') or 0
        dead_letter(id, value, 'timeout', 'expired: no consumer received it in time', tonumber(attempts))
    end
    return #ids
end
