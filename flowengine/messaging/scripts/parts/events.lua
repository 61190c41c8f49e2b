-- Publish what happened to an agent, if anybody wants to know.
local function publish(channel, event, named)
    if channel == '' or not named then return end
    local when = string.format('%.6f', NOW / 1000000)
    redis.call('PUBLISH', channel, '{"event":"' .. event .. '",' .. named .. ',"timestamp":' .. when .. '}')
end
