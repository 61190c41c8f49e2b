-- The attempts and the id of a reservation that still holds; nothing for any other token.
local function reservation(token)
    local deadline = redis.call('ZSCORE', DEADLINES, token)
    if not deadline or tonumber(deadline) <= NOW then return nil end
    return string.match(redis.call('HGET', RESERVED, token) or '', '^(%d+) (.*)$')
end
