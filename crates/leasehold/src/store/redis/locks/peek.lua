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
local stored = redis.call('GETRANGE', KEYS[1], 0, HEAD_SIZE - 1)
local format = string.byte(stored)
if not format then
  return { now, false, false }
elseif format ~= 1 then
  return redis.error_reply('LEASEHOLD a record of format ' .. tostring(format))
end

local _, _, wake_at, _, lease_count, ticket_count, at = decode('>dddBc0HH', stored, 2)
local lease = false
for _ = 1, lease_count do
  if #stored == HEAD_SIZE and at + 4 + 73 > HEAD_SIZE then
    stored = redis.call('GET', KEYS[1])
  end
  local length = decode('>I4', stored, at)
  -- The id follows eight numbers, one of them a byte.
  if string.sub(stored, at + 61, at + 76) == ARGV[1] then
    if #stored < at + 3 + length then
      stored = redis.call('GET', KEYS[1])
    end
    lease = string.sub(stored, at + 4, at + 3 + length)
    break
  end
  at = at + 4 + length
end
return { now, ticket_count > 0 and wake_at, lease }
