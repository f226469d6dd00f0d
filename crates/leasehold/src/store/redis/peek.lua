-- What a waiter needs to know of a lock, without its queue: neither the list is read nor the ids of those who wait.
--
-- KEYS: the lock's record.
-- ARGV: the waiter's lease id, the time (empty: the server's own).
-- Gives the time; `wake_at`, or nothing if nobody waits; and the waiter's lease, or nothing.

local open = struct.unpack
local now = tonumber(ARGV[2])
if not now then
  local time = redis.call('TIME')
  now = time[1] * 1000000 + time[2]
end

-- Enough for one holder with everything that it may say of itself but long metadata.
local FIRST = 2048
local stored = redis.call('GETRANGE', KEYS[1], 0, FIRST - 1)
local format = string.byte(stored)
if not format then
  return { now, false, false }
elseif format ~= 1 and format ~= 2 then
  return redis.error_reply('LEASEHOLD a record of format ' .. tostring(format))
end

local _, _, wake_at, _, lease_count, ticket_count, at = open('>dddBc0HH', stored, 2)
local mine = false
for _ = 1, lease_count do
  if #stored == FIRST and at + 4 + 73 > FIRST then
    stored = redis.call('GET', KEYS[1])
  end
  local length = open('>I4', stored, at)
  -- The id is behind eight numbers, one of them a byte.
  if string.sub(stored, at + 61, at + 76) == ARGV[1] then
    if #stored < at + 3 + length then
      stored = redis.call('GET', KEYS[1])
    end
    mine = string.sub(stored, at + 4, at + 3 + length)
    break
  end
  at = at + 4 + length
end
return { now, ticket_count > 0 and wake_at, mine }
