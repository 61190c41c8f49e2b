-- The values of settings, in the order of the names.
local function settings(...)
    local values = redis.call('HMGET', CONFIG, ...)
    for place, name in ipairs({...}) do values[place] = tonumber(values[place] or DEFAULTS[name]) end
    return unpack(values)
end
