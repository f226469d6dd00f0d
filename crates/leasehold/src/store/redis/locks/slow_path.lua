-- Stores a lock that the rules of leasehold-model have changed, if it is still the one that was
-- read. `apply.lua` describes the formats.
--
-- A refresh of a ticket in between is no conflict, unless this change is about that ticket or raises
-- `wake_at`: otherwise no client could change a lock that many wait for.
--
-- KEYS: record of the lock; on a Cluster also a key that never exists (`apply.lua`). The other keys of its
--       bucket have the same beginning.
-- ARGV: name of the lock; the record that was read (empty: none) and the minimum token; whether the version rises ('1'), whether refreshed tickets are a conflict
--       ('1'), `wake_at`; format and token, then the rest of the record after `wake_at`; numbers
--       of events and messages. Then the events; channel and content of each message; and for each changed ticket its index,
--       the ticket that was read (empty: insert) and the new one (empty: remove), last index first.
-- Returns 1, or 0 after a conflict.

local encode, decode, call = struct.pack, struct.unpack, redis.call
local record = KEYS[1]
local name, expected, min_token, rises, exact = unpack(ARGV, 1, 5)
local wake_at, head, body = tonumber(ARGV[6]), ARGV[7], ARGV[8]
local base = string.sub(record, 1, -6 - #name)
local queue = base .. 'queue:' .. name
local messages = 11 + ARGV[9]
local edits = messages + ARGV[10] * 2

local function without_refreshes(packed)
  return string.sub(packed, 1, 1) .. string.sub(packed, 10, 17) .. string.sub(packed, 26)
end

local stored = call('GET', record) or ''
if string.byte(stored) == 1 then
  stored = '\2' .. string.sub(stored, 2, 25) .. '\255' .. string.sub(stored, 27 + (string.byte(stored, 26) or 0))
end
if stored ~= expected and (exact == '1' or without_refreshes(stored) ~= without_refreshes(expected)) then
  return 0
end
local version, old_wake_at, ticket_count, tickets, _ = 0, 0, 0, {}, nil
if stored ~= '' then
  version, _, old_wake_at, _, _, ticket_count = decode('>dddBHH', stored, 2)
elseif (call('GET', base .. 'floor') or '0') ~= min_token then
  return 0
end

-- Nothing is written before all tickets have been compared.
local resized = false
if edits <= #ARGV and ticket_count > 0 then
  tickets = call('LRANGE', queue, 0, -1)
end
for at = edits, #ARGV, 3 do
  local index, old, new = ARGV[at] + 1, ARGV[at + 1], ARGV[at + 2]
  if old ~= '' and tickets[index] ~= old then
    return 0
  end
  resized = resized or old == '' or new == ''
  if old == '' then
    table.insert(tickets, index, new)
  elseif new == '' then
    table.remove(tickets, index)
  else
    tickets[index] = new
  end
end

local time = messages > 11 and call('TIME')
for at = 11, messages - 1 do
  call('APPEND', base .. 'recent', encode('>Hdc0', #ARGV[at], time[1] * 1000000 + time[2], ARGV[at]))
end
if resized then
  call('DEL', queue)
  for from = 1, #tickets, 500 do
    call('RPUSH', queue, unpack(tickets, from, math.min(from + 499, #tickets)))
  end
else
  for at = edits, #ARGV, 3 do
    call('LSET', queue, ARGV[at], ARGV[at + 2])
  end
end
if exact ~= '1' then
  wake_at = math.min(wake_at, old_wake_at)
end
if wake_at == 0 then
  call('ZREM', base .. 'due', name)
elseif wake_at ~= old_wake_at then
  call('ZADD', base .. 'due', wake_at, name)
end
if stored == '' then
  call('ZADD', base .. 'names', 0, name)
end
call('SET', record,
  encode('>c1dc8dBc0', head, version + (rises == '1' and 1 or 0), string.sub(head, 2), wake_at, 255, body))

-- A notification is a hint: if it may not be sent, the writes must stand.
for at = messages, edits - 1, 2 do
  redis.pcall('PUBLISH', ARGV[at], ARGV[at + 1])
end
return 1
