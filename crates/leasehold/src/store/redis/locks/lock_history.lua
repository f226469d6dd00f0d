-- Reads the history of one lock, along the chain in which each event names its predecessor.
--
-- KEYS: events of the bucket, record of the lock.
-- ARGV: 'before' or 'after', id of an event (for 'before' empty: from the newest), maximum number
--       of events, name of the lock.
-- Returns pairs of id and encoded event: newest first for 'before', oldest first for 'after'.

local direction, cursor, limit = ARGV[1], ARGV[2], tonumber(ARGV[3])

-- Returns the id of the preceding event, which follows the numbers of an event or of a record.
local function previous_id(packed, numbers)
  return (struct.unpack('>Bc0', packed, numbers + 1))
end

local function read_event(id)
  local found = id ~= '' and redis.call('XRANGE', KEYS[1], id, id)[1]
  return found and found[2][2]
end

local function is_after(id, other)
  local ms, seq = string.match(id, '(%d+)-(%d+)')
  local other_ms, other_seq = string.match(other, '(%d+)-?(%d*)')
  ms, seq, other_ms, other_seq = tonumber(ms), tonumber(seq), tonumber(other_ms), tonumber(other_seq) or 0
  return ms > other_ms or (ms == other_ms and seq > other_seq)
end

-- Returns the id of the newest event of a lock without a record, by a search through the events of
-- its bucket.
local function newest_id()
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
if direction == 'before' and cursor ~= '' then
  local packed = read_event(cursor)
  id = packed and previous_id(packed, 41) or ''
else
  local record = redis.call('GET', KEYS[2])
  id = record and previous_id(record, 25) or newest_id()
end

local found = {}
while id ~= '' and (direction == 'after' or #found < limit) do
  local packed = read_event(id)
  if not packed or (direction == 'after' and not is_after(id, cursor)) then
    break
  end
  found[#found + 1] = { id, packed }
  id = previous_id(packed, 41)
end
if direction == 'before' then
  return found
end
local oldest = {}
for at = #found, math.max(1, #found - limit + 1), -1 do
  oldest[#oldest + 1] = found[at]
end
return oldest
