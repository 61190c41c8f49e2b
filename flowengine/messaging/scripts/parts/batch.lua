-- A reservation is `<attempts, including this one>:<deadline, µs> <id>` under its token in RESERVED,
-- and its token is in DEADLINES. A batch is one entry under `<token>+`:
--     <deadline, µs> <JSON: [[ids by place], {place: attempts, if not 1}]>
-- The token of the first place is `<token>`, that of the third `<token>-3`. A place is false if its
-- message is settled or has a reservation of its own.
local function format_batch(deadline, ids, repeated)
    return deadline .. ' ' .. cjson.encode({ids, repeated})
end

local function read(stored)
    local deadline, from = string.match(stored, '^(%d+) ()')
    local batch = cjson.decode(string.sub(stored, from))
    return deadline, batch[1], batch[2]
end

-- The value of a reservation whose receive was cancelled before it arrived.
local CANCELLED = '-'
