-- Wake waiting receivers, one per element of the list WAKEUP. The list is bounded and expires.
local function wake(count)
    if count == 0 or redis.call('EXISTS', WAITING) == 0 then return end
    for _ = 1, math.min(count, 64 - redis.call('LLEN', WAKEUP)) do redis.call('RPUSH', WAKEUP, '1') end
    redis.call('PEXPIRE', WAKEUP, 5000)
end
