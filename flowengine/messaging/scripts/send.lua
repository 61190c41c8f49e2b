--! keys: config meta queue messages expiries seen waiting bell endpoints high normal low
--! uses: clock settings levels bell
-- arguments: endpoint, delay (µs), lifetime (µs or 0), for each message its priority, its type and
-- the lengths of its id and its body, and then these ids and bodies as one text: an argument of its
-- own for each would take longer than all that is done with it
-- answers a digit for each message: 1 taken in, 2 a duplicate, 3 full, 4 not subscribed
local delay, lifetime, texts = tonumber(ARGV[2]), tonumber(ARGV[3]), ARGV[5]
local size, window = settings('queue_size', 'dedup_window')
local types, mixed = unpack(redis.call('HMGET', META, 'subs', 'mixed'))
local length = redis.call('LLEN', QUEUE)
if length == 0 then redis.call('SADD', ENDPOINTS, ARGV[1]) end

local expires = lifetime > 0 and stamp(NOW + lifetime) or '0'
local between = ' ' .. now .. ' ' .. expires .. ' '
local asked, heads, levels, bodies, at = {}, {}, {}, {}, 1
for head, priority, named, written in string.gmatch(ARGV[4], '((%d) %a+) (%d+) (%d+) ') do
    local place, body = #asked + 1, at + named
    asked[place], heads[place], levels[place] = string.sub(texts, at, body - 1), head, priority
    at = body + written
    bodies[place] = string.sub(texts, body, at - 1)
end

-- What is not there costs next to nothing to ask for, and hardly anything is there.
local known = redis.call('HMGET', MESSAGES, unpack(asked))
local remembered = window > 0 and redis.call('ZMSCORE', SEEN, unpack(asked)) or {}
local answers, ids, values, due, expiring, taken = {}, {}, {}, {}, {}, {}
for place, id in ipairs(asked) do
    if types and not string.find(types, string.sub(heads[place], 3), 1, true) then
        answers[place] = '4'
    elseif known[place] or taken[id] or (remembered[place] and tonumber(remembered[place]) > NOW) then
        answers[place] = '2'
    elseif length + #ids >= size then
        answers[place] = '3'
    else
        local level = due[levels[place]] or {}
        due[levels[place]] = level
        -- Equal times would be ordered by id, so those of one batch are a microsecond apart.
        level[#level + 1], level[#level + 2] = stamp(NOW + delay + #ids), id
        ids[#ids + 1], taken[id] = id, true
        values[#values + 1], values[#values + 2] = id, heads[place] .. between .. bodies[place]
        if lifetime > 0 then expiring[#expiring + 1], expiring[#expiring + 2] = expires, id end
        answers[place] = '1'
    end
end
if #ids == 0 then return table.concat(answers) end
redis.call('HSET', MESSAGES, unpack(values))
redis.call('RPUSH', QUEUE, unpack(ids))
for priority, members in pairs(due) do redis.call('ZADD', LEVELS[priority], unpack(members)) end
if not mixed and (due['9'] or due['1']) then redis.call('HSET', META, 'mixed', 1) end
if #expiring > 0 then
    redis.call('ZADD', EXPIRIES, unpack(expiring))
    redis.call('HSET', META, 'expiring', 1)
end
ring(#ids)
return table.concat(answers)
