-- Return messages whose reservation has expired. Each expiry counts as a failed attempt, so that a
-- message that kills its consumers becomes a dead letter.
local EXPIRED = 'the reservation expired: its holder died, or took too long'

-- Ends expired reservations, the oldest first: up to `limit` messages, or one whole batch.
-- Returns ids, attempts, and whether there may be more.
local function expired(limit)
    local ids, attempts = {}, {}
    local function add(id, count) ids[#ids + 1], attempts[#attempts + 1] = id, tonumber(count) end
    local names = redis.call('ZRANGEBYSCORE', DEADLINES, '-inf', now, 'LIMIT', 0, limit)
    for _, name in ipairs(names) do
        if #ids >= limit then return ids, attempts, true end
        local stored = redis.call('HGET', RESERVED, name)
        if stored == CANCELLED then
            -- Reserves no message.
        elseif stored and string.sub(name, -1) == '+' then
            local _, places, repeated = read(stored)
            for place, id in ipairs(places) do
                if id then add(id, repeated[tostring(place)] or 1) end
            end
        elseif stored then
            local count, id = string.match(stored, '^(%d+):%d+ (.*)$')
            if id then add(id, count) end
        end
        forget(name)
    end
    return ids, attempts, #names == limit
end

local function reclaim(limit)
    local returned, dead = 0, 0
    local ids, attempts, more = expired(limit)
    local retries = #ids > 0 and settings('retry_attempts')
    for place, id in ipairs(ids) do
        local value = redis.call('HGET', MESSAGES, id)
        local head = header(value)
        if head and attempts[place] <= retries then
            record_try(id, attempts[place], EXPIRED)
            -- Available now, in the order of expiry.
            schedule(id, head, NOW - #ids + place)
            returned = returned + 1
        else
            dead_letter(id, value, head and 'timeout' or 'permanent', head and EXPIRED or UNREADABLE, attempts[place])
            dead = dead + 1
        end
    end
    return returned, dead, more
end
