-- Stores a lock that the rules of leasehold-model have changed, if it is still the one that was
-- read. `apply.lua` describes the formats.
--
-- A refresh of a ticket in between is no conflict, unless this change is about that ticket or raises
-- `wake_at`: otherwise no client could change a lock that many wait for.
--
-- KEYS: record of the lock; names, due times and events of its bucket; queue of the lock; key of
--       the bucket's minimum token.
-- ARGV: name of the lock, maximum number of events; the record that was read (empty: none) and the
--       minimum token; whether the version rises ('1'), whether refreshed tickets are a conflict
--       ('1'), `wake_at`; format and token, then the rest of the record after the last event; numbers
--       of events and messages. Then the events without the id of the event before, which is
--       inserted here; channel and content of each message; and for each changed ticket its index,
--       the ticket that was read (empty: insert) and the new one (empty: remove), last index first.
-- Returns 1, or 0 after a conflict.

local encode, decode, call = struct.pack, struct.unpack, redis.call
local record, names, due_index, events, queue, min_token_key = unpack(KEYS)
local name, max_events, expected, min_token, rises, exact = unpack(ARGV, 1, 6)
local wake_at, head, body = tonumber(ARGV[7]), ARGV[8], ARGV[9]
local messages = 12 + ARGV[10]
local edits = messages + ARGV[11] * 2

local function without_refreshes(packed)
  return string.sub(packed, 1, 1) .. string.sub(packed, 10, 17) .. string.sub(packed, 26)
end

local stored = call('GET', record) or ''
if stored ~= expected and (exact == '1' or without_refreshes(stored) ~= without_refreshes(expected)) then
  return 0
end
local version, old_wake_at, last_event, ticket_count, tickets, _ = 0, 0, '', 0, {}, nil
if stored ~= '' then
  version, _, old_wake_at, last_event, _, ticket_count = decode('>dddBc0HH', stored, 2)
elseif (call('GET', min_token_key) or '0') ~= min_token then
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

for at = 12, messages - 1 do
  last_event = call('XADD', events, 'MAXLEN', '~', max_events, '*', 'e',
    string.sub(ARGV[at], 1, 41) .. encode('>Bc0', #last_event, last_event) .. string.sub(ARGV[at], 42))
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
  call('ZREM', due_index, name)
elseif wake_at ~= old_wake_at then
  call('ZADD', due_index, wake_at, name)
end
if stored == '' then
  call('ZADD', names, 0, name)
end
call('SET', record,
  encode('>c1dc8dBc0c0', head, version + (rises == '1' and 1 or 0), string.sub(head, 2), wake_at, #last_event,
    last_event, body))

-- A notification is a hint: if it may not be sent, the writes must stand.
for at = messages, edits - 1, 2 do
  redis.pcall('PUBLISH', ARGV[at], ARGV[at + 1])
end
return 1
