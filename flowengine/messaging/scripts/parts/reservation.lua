local function forget(name)
    redis.call('HDEL', RESERVED, name)
    redis.call('ZREM', DEADLINES, name)
end

-- Store the rest of a batch, or delete the entry if nothing is left.
local function store(name, deadline, ids, repeated)
    for _, id in ipairs(ids) do
        if id then
            redis.call('HSET', RESERVED, name, format_batch(deadline, ids, repeated))
            return
        end
    end
    forget(name)
end

-- End a valid reservation. Returns its attempts and message id; nil if it is not valid.
local function end_reservation(token)
    local single = redis.call('HGET', RESERVED, token)
    if single then
        local attempts, deadline, id = string.match(single, '^(%d+):(%d+) (.*)$')
        if not id or tonumber(deadline) <= NOW then return nil end
        forget(token)
        return tonumber(attempts), id
    end
    local first, place = string.match(token, '^(.*)-(%d+)$')
    local name = (first or token) .. '+'
    local stored = redis.call('HGET', RESERVED, name)
    if not stored then return nil end
    place = tonumber(place or 1)
    local deadline, ids, repeated = read(stored)
    local id = ids[place]
    if not id or tonumber(deadline) <= NOW then return nil end
    ids[place] = false
    store(name, deadline, ids, repeated)
    return repeated[tostring(place)] or 1, id
end
