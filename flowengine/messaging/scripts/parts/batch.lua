-- A reservation is `<attempts, with this one>:<deadline, µs> <id>`, under its token in RESERVED, and
-- its token is in DEADLINES. What one call handed out as a batch is one entry, under `<token>+`:
--     <deadline, µs> <JSON: [[the ids by their places], {place: attempts, if not 1}]>
-- The token of the first place is `<token>`, that of the third `<token>-3`. A place is false once
-- its message is settled, or has a reservation of its own.
local function written(deadline, ids, repeated)
    return deadline .. ' ' .. cjson.encode({ids, repeated})
end

local function read(kept)
    local deadline, from = string.match(kept, '^(%d+) ()')
    local batch = cjson.decode(string.sub(kept, from))
    return deadline, batch[1], batch[2]
end

-- The value of a reservation whose receive was cancelled before it arrived.
local CANCELLED = '-'
