-- Publish an event of an agent, if events are enabled.
local function publish(channel, event, fields)
    if channel == '' or not fields then return end
    local time = string.format('%.6f', NOW / 1000000)
    redis.call('PUBLISH', channel, '{"event":"' .. event .. '",' .. fields .. ',"timestamp":' .. time .. '}')
end
