--! keys: queue messages reserved dlq meta high normal low
--! uses: clock
-- answers: ready by level, delayed, reserved, total, age of the oldest (µs or -1), dead, dropped
local answer, delayed = {}, 0
for i, level in ipairs({HIGH, NORMAL, LOW}) do
    answer[i] = redis.call('ZCOUNT', level, '-inf', NOW)
    delayed = delayed + redis.call('ZCARD', level) - answer[i]
end
answer[4], answer[5] = delayed, redis.call('HLEN', RESERVED)
answer[6] = redis.call('LLEN', QUEUE)
local oldest = redis.call('LINDEX', QUEUE, 0)
local sent = oldest and string.match(redis.call('HGET', MESSAGES, oldest) or '', '^%d %a+ (%d+) ')
answer[7] = sent and math.max(NOW - tonumber(sent), 0) or -1
answer[8] = redis.call('LLEN', DLQ)
answer[9] = tonumber(redis.call('HGET', META, 'dead_dropped') or 0)
return answer
