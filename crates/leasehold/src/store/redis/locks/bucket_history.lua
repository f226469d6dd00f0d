-- Reads events of one bucket, and the time of the read: an event that is written later has no
-- earlier position.
-- ARGV: 'forward' or 'backward', position (empty: from the beginning or the end), whether events at
--       this position count, too ('1'), maximum number of blocks, minimum number of events.
-- Returns the time; single events, oldest or newest first; blocks, oldest first; the text of recent events;
-- and whether there are no further events in this direction. Blocks may have events on both sides of
-- the position.

local direction, position, blocks, events = ARGV[1], ARGV[2], tonumber(ARGV[4]), tonumber(ARGV[5])
local time = redis.call('TIME')
local milliseconds = time[1] * 1000 + math.floor(time[2] / 1000)
local after = (ARGV[3] == '1' and '' or '(') .. position
local single, found, recent, is_all = {}, {}, '', 0

if direction == 'forward' then
  local from = position == '' and '-' or after
  single = redis.call('XRANGE', KEYS[3], from, '+', 'COUNT', events)
  if #single < events then
    found = redis.call('XRANGE', KEYS[1], from, '+', 'COUNT', blocks)
    if #found < blocks then
      recent, is_all = recent_events(), 1
    end
  end
else
  local from = position == '' and '+' or after
  -- The block that contains the position, or follows it.
  local around = position == '' and {} or redis.call('XRANGE', KEYS[1], position, '+', 'COUNT', 1)
  if #around == 0 then
    recent = recent_events()
  end
  local before = redis.call('XREVRANGE', KEYS[1], from, '-', 'COUNT', blocks)
  for at = #before, 1, -1 do
    if #around == 0 or before[at][1] ~= around[1][1] then
      found[#found + 1] = before[at]
    end
  end
  found[#found + 1] = around[1]
  if #before < blocks then
    single = redis.call('XREVRANGE', KEYS[3], from, '-', 'COUNT', events)
    is_all = #single < events and 1 or 0
  end
end

local texts = {}
for at, entry in ipairs(found) do
  texts[at] = entry[2][2]
end
return { milliseconds, single, texts, recent, is_all }
