-- Removes idle locks of one bucket: `LockRecord::is_forgettable` of model/forget.rs. Raises the
-- minimum token of the bucket in the same step, so that the tokens of a removed lock are not used
-- again.
--
-- KEYS: names, due times and minimum token of the bucket; then for each lock its record and its
--       queue.
-- ARGV: time (empty: the server's clock), minimum time since the last grant, maximum number of
--       locks to remove, then the names of the locks.
-- Returns the number of removed locks.

local decode, call = struct.unpack, redis.call
local names, due_index, min_token_key = KEYS[1], KEYS[2], KEYS[3]
local now, idle, limit = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
if not now then
  local time = call('TIME')
  now = time[1] * 1000000 + time[2]
end
local stored_min_token = tonumber(call('GET', min_token_key) or 0)
local min_token = math.max(stored_min_token, now - idle)

local forgotten = 0
for at = 4, #ARGV do
  local record, queue, name = KEYS[at * 2 - 4], KEYS[at * 2 - 3], ARGV[at]
  -- Enough for a record without leases and tickets; a longer record has some.
  local stored = forgotten < limit and call('GETRANGE', record, 0, 127) or ''
  local format = string.byte(stored)
  if format == 1 or format == 2 then
    -- Format 1 has a text after the first three numbers.
    local _, token = decode('>dd', stored, 2)
    local leases, tickets = decode('>HH', stored, format == 1 and 27 + (string.byte(stored, 26) or 0) or 27)
    if leases == 0 and tickets == 0 and token <= min_token then
      if min_token > stored_min_token then
        call('SET', min_token_key, string.format('%.0f', min_token))
        stored_min_token = min_token
      end
      call('DEL', record, queue)
      call('ZREM', names, name)
      call('ZREM', due_index, name)
      forgotten = forgotten + 1
    end
  end
end
return forgotten
