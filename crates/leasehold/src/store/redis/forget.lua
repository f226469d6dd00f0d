-- Forgets idle locks of one bucket: `LockRecord::is_forgettable` of model/forget.rs, with the floor raised in the same step.
--
-- KEYS: of the bucket: the names, when to sweep which, the floor; then for each lock its record and its queue.
-- ARGV: the time (empty: the server's own), how long a lock must not have been granted, how many to forget at most, then the
--       locks' names.
-- Gives how many were forgotten.

local open, call = struct.unpack, redis.call
local names, due_index, floor_key = KEYS[1], KEYS[2], KEYS[3]
local now, idle, limit = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
if not now then
  local time = call('TIME')
  now = time[1] * 1000000 + time[2]
end
local before = tonumber(call('GET', floor_key) or 0)
local floor = math.max(before, now - idle)

local forgotten = 0
for at = 4, #ARGV do
  local record, queue, name = KEYS[at * 2 - 4], KEYS[at * 2 - 3], ARGV[at]
  -- Enough for a record without leases and tickets; a longer one has some.
  local stored = forgotten < limit and call('GETRANGE', record, 0, 127) or ''
  local format = string.byte(stored)
  if format == 1 or format == 2 then
    local _, token, _, _, leases, tickets = open('>dddBc0HH', stored, 2)
    if leases == 0 and tickets == 0 and token <= floor then
      if floor > before then
        call('SET', floor_key, string.format('%.0f', floor))
        before = floor
      end
      call('DEL', record, queue)
      call('ZREM', names, name)
      call('ZREM', due_index, name)
      forgotten = forgotten + 1
    end
  end
end
return forgotten
