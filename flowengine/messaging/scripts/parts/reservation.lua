-- The attempts and the id of a reservation that still holds; nothing for any other token.
local function reservation(token)
    local found = redis.call('HGET', RESERVED, token) or ''
    local attempts, deadline, id = string.match(found, '^(%d+):(%d+) (.*)$')
    if not id or tonumber(deadline) <= NOW then return nil end
    return attempts, id
end
