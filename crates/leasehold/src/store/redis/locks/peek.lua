-- Reads the state of a lock that a waiter needs, without its queue: neither the list nor the ids of
-- the waiters are read.
--
-- KEYS: record of the lock.
-- ARGV: lease id of the waiter, time (empty: the server's clock).
-- Returns the time; `wake_at`, or nothing if there are no waiters; and the waiter's lease, or
-- nothing.

local decode = struct.unpack
local now = tonumber(ARGV[2])
if not now then
  local time = redis.call('TIME')
  now = time[1] * 1000000 + time[2]
end

-- Enough for one lease with all its fields, except for long metadata.
local HEAD_SIZE = 2048

-- Returns the record, or its beginning, in format 2, and whether this is all of it.
local function read(is_short)
  local stored = is_short and redis.call('GETRANGE', KEYS[1], 0, HEAD_SIZE - 1) or redis.call('GET', KEYS[1])
  local is_whole = not is_short or #stored < HEAD_SIZE
  if string.byte(stored) == 1 then
    stored = '\2' .. string.sub(stored, 2, 25) .. '\255' .. string.sub(stored, 27 + (string.byte(stored, 26) or 0))
  end
  return stored, is_whole
end

local stored, is_whole = read(true)
local format = string.byte(stored)
if not format then
  return { now, false, false }
elseif format ~= 2 then
  return redis.error_reply('LEASEHOLD a record of format ' .. tostring(format))
end

local _, _, wake_at, _, lease_count, ticket_count, at = decode('>dddBHH', stored, 2)
local lease = false
for _ = 1, lease_count do
  if not is_whole and at + 4 + 73 > #stored then
    stored, is_whole = read(false)
  end
  local length = decode('>I4', stored, at)
  -- The id follows eight numbers, one of them a byte.
  if string.sub(stored, at + 61, at + 76) == ARGV[1] then
    if not is_whole and #stored < at + 3 + length then
      stored, is_whole = read(false)
    end
    lease = string.sub(stored, at + 4, at + 3 + length)
    break
  end
  at = at + 4 + length
end
return { now, ticket_count > 0 and wake_at, lease }
