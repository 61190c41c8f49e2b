--! keys: queue messages dlq meta high normal low
--! uses: clock
-- answers: ready by level, delayed, reserved, total, age of the oldest (µs or -1), dead, dropped
local answer, ready, scheduled = {}, 0, 0
for i, level in ipairs({HIGH, NORMAL, LOW}) do
    answer[i] = redis.call('ZCOUNT', level, '-inf', NOW)
    ready, scheduled = ready + answer[i], scheduled + redis.call('ZCARD', level)
end
answer[6] = redis.call('LLEN', QUEUE)
-- What is in no schedule is in somebody's hands.
answer[4], answer[5] = scheduled - ready, answer[6] - scheduled
local oldest = redis.call('LINDEX', QUEUE, 0)
local sent = oldest and string.match(redis.call('HGET', MESSAGES, oldest) or '', '^%d %a+ (%d+) ')
answer[7] = sent and math.max(NOW - tonumber(sent), 0) or -1
answer[8] = redis.call('LLEN', DLQ)
answer[9] = tonumber(redis.call('HGET', META, 'dead_dropped') or 0)
return answer
