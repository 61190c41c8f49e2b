local function setting(name)
    return tonumber(redis.call('HGET', CONFIG, name) or DEFAULTS[name])
end
