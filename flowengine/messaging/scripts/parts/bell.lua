-- Wake receivers, if any waits. More bells than could wake anybody would be looks in vain.
local function ring(count)
    if count == 0 or redis.call('EXISTS', WAITING) == 0 then return end
    for _ = 1, math.min(count, 64 - redis.call('LLEN', BELL)) do redis.call('RPUSH', BELL, '1') end
    redis.call('PEXPIRE', BELL, 5000)
end
