--! keys: queue messages dlq meta high normal low
--! uses: clock
-- Returns: ready by priority, delayed, reserved, total, age of the oldest (µs or -1), dead, dropped.
local depths, ready, scheduled = {}, 0, 0
for i, level in ipairs({HIGH, NORMAL, LOW}) do
    depths[i] = redis.call('ZCOUNT', level, '-inf', NOW)
    ready, scheduled = ready + depths[i], scheduled + redis.call('ZCARD', level)
end
depths[6] = redis.call('LLEN', QUEUE)
-- A message that is in no schedule is reserved.
depths[4], depths[5] = scheduled - ready, depths[6] - scheduled
local oldest = redis.call('LINDEX', QUEUE, 0)
local sent = oldest and string.match(redis.call('HGET', MESSAGES, oldest) or '', '^%d %a+ (%d+) ')
depths[7] = sent and math.max(NOW - tonumber(sent), 0) or -1
depths[8] = redis.call('LLEN', DLQ)
depths[9] = tonumber(redis.call('HGET', META, 'dead_dropped') or 0)
return depths
