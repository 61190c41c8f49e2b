-- Make expired reservations available again. Each is a failed attempt, so that a message
-- which kills whoever receives it does not come back for ever.
local EXPIRED = 'the reservation expired: its holder died, or took too long'

local function reclaim(most)
    local returned, dead = 0, 0
    local retries
    local tokens = redis.call('ZRANGEBYSCORE', DEADLINES, '-inf', NOW, 'LIMIT', 0, most)
    for place, token in ipairs(tokens) do
        local attempts, id = string.match(redis.call('HGET', RESERVED, token) or '', '^(%d+):%d+ (.*)$')
        redis.call('ZREM', DEADLINES, token)
        redis.call('HDEL', RESERVED, token)
        if id then
            retries = retries or settings('retry_attempts')
            attempts = tonumber(attempts)
            local value = redis.call('HGET', MESSAGES, id)
            local head = header(value)
            if head and attempts <= retries then
                tried(id, attempts, EXPIRED)
                -- Available now, in the order in which they expired.
                schedule(id, head, NOW - #tokens + place)
                returned = returned + 1
            else
                bury(id, value, head and 'timeout' or 'permanent', head and EXPIRED or POISON, attempts)
                dead = dead + 1
            end
        end
    end
    return returned, dead, #tokens
end
