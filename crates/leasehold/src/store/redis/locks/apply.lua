-- One operation on one lock: the fast paths, also those of a queue. Any other operation changes
-- nothing here: its caller gets the stored lock and the time, applies the rules of leasehold-model
-- and stores the result with `slow_path.lua`.
--
-- KEYS: record of the lock. The other keys of its bucket have the same beginning, and so are on the
--       same node of a Cluster. There a second key never exists: with it, Redis runs no script while
--       the slot moves.
-- ARGV: operation, time (empty: the server's clock), name of the lock, then the arguments of the
--       operation.
--
-- Arguments are texts and numbers, never code. Numbers stay below 2^53, so they are exact. An empty
-- text or 0 means none. Encoded values, which codec.rs also reads and writes:
--   record    format, version, token, wake_at, 255, numbers of leases and tickets, then each lease after
--             its length. The tickets are in a list, so that neither enqueueing nor
--             granting copies all tickets; if there are any, the record ends with an upper bound of
--             the rank of the last ticket and the ids of all
--   lease     numbers, identity, extras, then the requester and the reason of a release request
--   ticket    numbers, notification address, identity, extras. The address is the 32 characters that
--             the channel of the waiter's process has in braces, and optionally 8 bytes that
--             identify the waiter's latest acquire attempt
--   identity  lease id, mode, slots, holder: part of every event
--   event     see recent.lua: every operation appends its events to one text of its bucket
--   extras    the other data of the request as JSON
-- `wake_at` is never after the first expiry of a lease or ticket, and is raised only when it has
-- passed. Format 1 has the length and the id of the last event in place of 255; such a record is read,
-- and the next change writes format 2. A script of an earlier version that reads the history of a lock
-- does not check the format, but fails because of that length. The limits of the model, such as `MAX_WAITERS`, are
-- defined by scripts.rs.

local encode, decode, call = struct.pack, struct.unpack, redis.call
local record, op, name = KEYS[1], ARGV[1], ARGV[3]
local base = string.sub(record, 1, -6 - #name)
local time = call('TIME')
local stamp = time[1] * 1000000 + time[2]
local now = tonumber(ARGV[2]) or stamp
local arg1, arg2, arg3 = ARGV[4], ARGV[5], ARGV[6]
local stored = call('GET', record)
if stored and string.byte(stored) ~= 2 then
  if string.byte(stored) ~= 1 then
    return redis.error_reply('LEASEHOLD a record of format ' .. tostring(string.byte(stored)))
  end
  stored = '\2' .. string.sub(stored, 2, 25) .. '\255' .. string.sub(stored, 27 + (string.byte(stored, 26) or 0))
end
-- fast_path.lua
if answer then
  return answer
end

-- Queue behind one exclusive holder: the release hands the lock over to the first ticket.
-- The last argument of a release is the channel of the caller's process, after '+' if the script
-- publishes notifications.
local queue = base .. 'queue:' .. name
if ticket_count > 0 and lease_count == 1 and op == 'release' and now < wake_at and token < now and arg3 == '' then
  local lease, tail = decode('>I4c0', stored, body)
  local lease_token, acquired_at, _, _, renewals, _, status, _, id, _, _, _, identity_end =
    decode('>ddddddBdc16BHBc0', lease)
  local ticket = id == arg1 and lease_token == tonumber(arg2) and status ~= 2 and call('LINDEX', queue, 0)
  local since, ticket_ttl, ttl, notify_to, identity_at, next_id, mode, slots, next_identity_end, _
  if ticket then
    since, _, ticket_ttl, ttl, _, notify_to, identity_at = decode('>dddddBc0', ticket)
    next_id, mode, slots, _, next_identity_end = decode('>c16BHBc0', ticket, identity_at)
  end
  if ticket and mode == 0 and slots == 1 and next_id == string.sub(stored, tail + 8, tail + 23) then
    call('LPOP', queue)
    local held, waited = now > acquired_at and now - acquired_at or 0, now > since and now - since or 0
    call('APPEND', base .. 'recent',
      encode('>HdBdddddBBBBc0c0HdBdddddBBBBc0c0', 45 + #name + identity_end - 58, stamp, 1, now, lease_token, held,
        renewals, 0, 0, 0, 0, #name, name, string.sub(lease, 58, identity_end - 1),
        45 + #name + next_identity_end - identity_at, stamp, 0, now, now, waited, 0, 0, 0, 0, 0, #name, name,
        string.sub(ticket, identity_at, next_identity_end - 1)))
    local expires_at = now + (ticket_ttl < ttl and ticket_ttl or ttl)
    if expires_at < wake_at then
      wake_at = expires_at
      call('ZADD', base .. 'due', wake_at, name)
    end
    local granted =
      encode('>ddddddBdc0BB', now, now, now, expires_at, 0, ttl, 0, 0, string.sub(ticket, identity_at), 0, 0)
    call('SET', record,
      encode('>BdddBHHI4c0c0c0', 2, version + 1, now, wake_at, 255, 1, ticket_count - 1, #granted, granted,
        ticket_count > 1 and string.sub(stored, tail, tail + 7) or '', string.sub(stored, tail + 24)))
    local own_channel, attempt_id = string.sub(ARGV[7], 2), string.sub(notify_to, 33)
    local channel = string.sub(own_channel, 1, -34) .. string.sub(notify_to, 1, 32) .. '}'
    if string.byte(ARGV[7]) == 43 and channel ~= own_channel then
      redis.pcall('PUBLISH', channel, next_id .. (attempt_id == '' and '' or attempt_id .. granted))
    end
    return { 'released', lease, granted, channel }
  end
end

-- Same queue: a first request is appended to its end, or refused if it does not wait.
-- A request that neither waits nor takes the lock over has no more arguments; the others have their
-- priority, the TTL of the ticket, the time after which they take the lock over, and the notification
-- address.
local ticket_ttl_text, steal_after, address = ARGV[8] or '', ARGV[9] or '', ARGV[10]
if lease_count == 1 and op == 'acquire' and now < wake_at and steal_after == '' then
  local identity = arg1
  local lease, tail = decode('>I4c0', stored, body)
  local mode, slots = decode('>BH', lease, 74)
  if mode == 0 and slots == 1 and not string.find(stored, string.sub(identity, 1, 16), 1, true) then
    local full = ticket_count >= MAX_WAITERS
    if full or ticket_ttl_text == '' then
      return { 'conflict', ticket_count, full and 1 or 0, now, { lease } }
    end
    local ttl, priority, ticket_ttl = tonumber(arg3), tonumber(ARGV[7]), tonumber(ticket_ttl_text)
    local rank = now - PRIORITY_STEP * priority
    if ticket_count == 0 or decode('>d', stored, tail) <= rank then
      if ticket_count == 0 then
        call('DEL', queue) -- A lost record may have left a list.
      end
      call('RPUSH', queue,
        encode('>dddddBc0c0c0', now, now + ticket_ttl, ticket_ttl, ttl, priority, #address, address, identity, arg2))
      call('APPEND', base .. 'recent', encode('>HdBdddddBBBBc0c0', 45 + #name + #identity, stamp, 6, now, token, 0, 0, 0, 0, 0, 0, #name, name,
        identity))
      if now + ticket_ttl < wake_at then
        wake_at = now + ticket_ttl
        call('ZADD', base .. 'due', wake_at, name)
      end
      call('SET', record,
        encode('>BdddBHHc0dc0c0', 2, version + 1, token, wake_at, 255, 1, ticket_count + 1,
          string.sub(stored, body, tail - 1), rank, string.sub(stored, tail + 8), string.sub(identity, 1, 16)))
      return { 'queued', ticket_count, ticket_count + 1, { lease } }
    end
  end
end

-- A waiter refreshes its ticket by repeating its request: only that ticket and the version change.
-- Or it withdraws, and no other ticket is granted. The index of the ticket is found by the ids in
-- the record.
local refreshes = op == 'acquire' and ticket_ttl_text ~= '' and steal_after == ''
if ticket_count > 0 and now < wake_at and (refreshes or op == 'withdraw') then
  local id, leases, tail = string.sub(arg1, 1, 16), {}, body
  for at = 1, lease_count do
    leases[at], tail = decode('>I4c0', stored, tail)
    if string.sub(leases[at], 58, 73) == id then
      leases = nil
      break
    end
  end
  local ids = tail + 8
  local at = leases and string.find(stored, id, ids, true)
  while at and (at - ids) % 16 ~= 0 do
    at = string.find(stored, id, at + 1, true)
  end
  local ahead = at and (at - ids) / 16
  local ticket = at and call('LINDEX', queue, ahead)
  local since, ttl, priority, identity_at, _
  if ticket then
    since, _, _, ttl, priority, _, identity_at = decode('>dddddBc0', ticket)
    if string.sub(ticket, identity_at, identity_at + 15) ~= id then
      ticket = nil
    end
  end
  if ticket and refreshes then
    local ticket_ttl = tonumber(ticket_ttl_text)
    call('LSET', queue, ahead,
      encode('>dddddBc0c0', since, now + ticket_ttl, ticket_ttl, ttl, priority, #address, address,
        string.sub(ticket, identity_at)))
    -- Overwritten in place: the record ends with the ids of all waiters and may be long.
    call('SETRANGE', record, 1, encode('>d', version + 1))
    if now + ticket_ttl < wake_at then
      call('SETRANGE', record, 17, encode('>d', now + ticket_ttl))
      call('ZADD', base .. 'due', now + ticket_ttl, name)
    end
    return { 'queued', ahead, ticket_count, leases }
  elseif ticket and (ahead > 0 or (lease_count == 1 and string.sub(leases[1], 74, 76) == '\0\0\1')) then
    -- The first ticket keeps waiting: it is the same as before, or one exclusive holder has the lock.
    call('LREM', queue, 1, ticket)
    local _, _, _, _, identity_end = decode('>c16BHBc0', ticket, identity_at)
    call('APPEND', base .. 'recent', encode('>HdBdddddBBBBc0c0', 45 + #name + identity_end - identity_at, stamp, 7, now, token,
      now > since and now - since or 0, 0, 0, 0, 0, 0, #name, name, string.sub(ticket, identity_at, identity_end - 1)))
    call('SET', record,
      encode('>BdddBHHc0c0c0', 2, version + 1, token, wake_at, 255, lease_count, ticket_count - 1,
        string.sub(stored, body, tail - 1), ticket_count > 1 and string.sub(stored, tail, at - 1) or '',
        string.sub(stored, at + 16)))
    return { 'withdrawn' }
  end
end

if not stored and op == 'read' then
  call('ZREM', base .. 'due', name) -- A lost record may have left its time, which a sweep would find again.
end
-- A lock without a record has the minimum token of its bucket.
return { 'read', now, stored or '', token, ticket_count > 0 and call('LRANGE', queue, 0, -1) or {} }
