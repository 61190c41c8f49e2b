-- Settings by name, in the order asked for.
local function settings(...)
    local found = redis.call('HMGET', CONFIG, ...)
    for place, name in ipairs({...}) do found[place] = tonumber(found[place] or DEFAULTS[name]) end
    return unpack(found)
end
