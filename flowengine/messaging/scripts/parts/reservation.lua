local function forget(name)
    redis.call('HDEL', RESERVED, name)
    redis.call('ZREM', DEADLINES, name)
end

-- Keep of a batch what is left of it.
local function keep(name, deadline, ids, repeated)
    for _, id in ipairs(ids) do
        if id then
            redis.call('HSET', RESERVED, name, written(deadline, ids, repeated))
            return
        end
    end
    forget(name)
end

-- End a reservation that still holds: its attempts and its id. Nothing for any other token.
local function release(token)
    local alone = redis.call('HGET', RESERVED, token)
    if alone then
        local attempts, deadline, id = string.match(alone, '^(%d+):(%d+) (.*)$')
        if not id or tonumber(deadline) <= NOW then return nil end
        forget(token)
        return tonumber(attempts), id
    end
    local first, place = string.match(token, '^(.*)-(%d+)$')
    local name = (first or token) .. '+'
    local kept = redis.call('HGET', RESERVED, name)
    if not kept then return nil end
    place = tonumber(place or 1)
    local deadline, ids, repeated = read(kept)
    local id = ids[place]
    if not id or tonumber(deadline) <= NOW then return nil end
    ids[place] = false
    keep(name, deadline, ids, repeated)
    return repeated[tostring(place)] or 1, id
end
