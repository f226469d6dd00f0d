-- Events of a bucket: first part of the scripts that read or move them.
--
-- The newest events are in a text, `…:recent`, to which each operation appends its events: one cheap
-- command. A client that has appended many moves them: the text becomes one entry of a stream,
-- `…:blocks`, and a new text begins. The text and an entry are blocks:
--   block  format, position of the last event before this block (two numbers), events
--   event  length, time of the server's clock, the event as codec.rs packs it
-- The position of an event is its time in milliseconds and a number that distinguishes events of the
-- same millisecond. It is not stored but counted from the position at the beginning of the block
-- (history.rs), so it rises even if the clock goes back, and moving the event does not change it. The
-- id of an entry is the position of its last event. `…:events`, a stream with one event in each entry,
-- was written by earlier versions; all its events come before the others.
--
-- KEYS: stream of blocks, text of recent events, stream of single events.

local BLOCK_FORMAT = 242
local BLOCK_HEAD, BLOCK_HEAD_SIZE = '>Bdd', 17

-- Returns the beginning of a block that follows the events in the streams.
local function block_head()
  for _, stream in ipairs({ KEYS[1], KEYS[3] }) do
    local last = redis.call('XREVRANGE', stream, '+', '-', 'COUNT', 1)[1]
    if last then
      local ms, seq = string.match(last[1], '(%d+)-(%d+)')
      return struct.pack(BLOCK_HEAD, BLOCK_FORMAT, tonumber(ms), tonumber(seq))
    end
  end
  return struct.pack(BLOCK_HEAD, BLOCK_FORMAT, 0, 0)
end

-- Returns the text of recent events. The first event of a bucket begins the text without the beginning
-- of a block, which is inserted here.
local function recent_events()
  local recent = redis.call('GET', KEYS[2]) or ''
  if recent ~= '' and string.byte(recent) ~= BLOCK_FORMAT then
    recent = block_head() .. recent
    redis.call('SET', KEYS[2], recent)
    -- A client of an earlier version, which knows only this stream, fails here instead of returning a
    -- history without the later events.
    redis.call('XADD', KEYS[3], '*', 'e', '\255')
  end
  return recent
end
