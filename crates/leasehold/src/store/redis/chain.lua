-- The history of one lock, along the chain in which each event names the one before it.
--
-- KEYS: the bucket's events, the lock's record.
-- ARGV: 'before' or 'after', the id of an event (for 'before' an empty one: the newest), how many at most, the lock's name.
-- Gives pairs of id and packed event: newest first for 'before', oldest first for 'after'.

local way, cursor, limit = ARGV[1], ARGV[2], tonumber(ARGV[3])

-- Where the event before it is named: behind the numbers of an event, or of a record.
local function named(packed, numbers)
  return (struct.unpack('>Bc0', packed, numbers + 1))
end

local function read(id)
  local found = id ~= '' and redis.call('XRANGE', KEYS[1], id, id)[1]
  return found and found[2][2]
end

local function is_after(id, other)
  local ms, seq = string.match(id, '(%d+)-(%d+)')
  local other_ms, other_seq = string.match(other, '(%d+)-?(%d*)')
  ms, seq, other_ms, other_seq = tonumber(ms), tonumber(seq), tonumber(other_ms), tonumber(other_seq) or 0
  return ms > other_ms or (ms == other_ms and seq > other_seq)
end

-- The newest event of a lock whose record is forgotten, found among those of its bucket.
local function newest()
  local to = '+'
  while to do
    local found = redis.call('XREVRANGE', KEYS[1], to, '-', 'COUNT', 500)
    for _, entry in ipairs(found) do
      local _, _, _, _, _, _, _, _, _, name = struct.unpack('>BdddddBc0Bc0Bc0Bc0', entry[2][2])
      if name == ARGV[4] then
        return entry[1]
      end
    end
    to = #found == 500 and '(' .. found[500][1]
  end
  return ''
end

local id = ''
if way == 'before' and cursor ~= '' then
  local packed = read(cursor)
  id = packed and named(packed, 41) or ''
else
  local record = redis.call('GET', KEYS[2])
  id = record and named(record, 25) or newest()
end

local found = {}
while id ~= '' and (way == 'after' or #found < limit) do
  local packed = read(id)
  if not packed or (way == 'after' and not is_after(id, cursor)) then
    break
  end
  found[#found + 1] = { id, packed }
  id = named(packed, 41)
end
if way == 'before' then
  return found
end
local oldest = {}
for at = #found, math.max(1, #found - limit + 1), -1 do
  oldest[#oldest + 1] = found[at]
end
return oldest
