-- Make expired reservations available again. Each is a failed attempt, so that a message
-- which kills whoever receives it does not come back for ever.
local EXPIRED = 'the reservation expired: its holder died, or took too long'

-- What has expired, with its attempts, in the order in which it did: `most`, or all of a batch.
-- Whether there may be more.
local function expired(most)
    local ids, attempts = {}, {}
    local function found(id, made) ids[#ids + 1], attempts[#attempts + 1] = id, tonumber(made) end
    local names = redis.call('ZRANGEBYSCORE', DEADLINES, '-inf', now, 'LIMIT', 0, most)
    for _, name in ipairs(names) do
        if #ids >= most then return ids, attempts, true end
        local kept = redis.call('HGET', RESERVED, name)
        if kept == CANCELLED then
            -- Reserves nothing.
        elseif kept and string.sub(name, -1) == '+' then
            local _, places, repeated = read(kept)
            for place, id in ipairs(places) do
                if id then found(id, repeated[tostring(place)] or 1) end
            end
        elseif kept then
            local made, id = string.match(kept, '^(%d+):%d+ (.*)$')
            if id then found(id, made) end
        end
        forget(name)
    end
    return ids, attempts, #names == most
end

local function reclaim(most)
    local returned, dead = 0, 0
    local ids, attempts, more = expired(most)
    local retries = #ids > 0 and settings('retry_attempts')
    for place, id in ipairs(ids) do
        local value = redis.call('HGET', MESSAGES, id)
        local head = header(value)
        if head and attempts[place] <= retries then
            tried(id, attempts[place], EXPIRED)
            -- Available now, in the order in which they expired.
            schedule(id, head, NOW - #ids + place)
            returned = returned + 1
        else
            bury(id, value, head and 'timeout' or 'permanent', head and EXPIRED or POISON, attempts[place])
            dead = dead + 1
        end
    end
    return returned, dead, more
end
