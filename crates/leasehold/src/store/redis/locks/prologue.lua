-- One operation on one lock, first part: reads the record and tries the fast paths, including those
-- of a queue. `codec.lua` and `slow_path.lua` continue from here; together they are one script.
--
-- KEYS: record of the lock; names, due times and events of its bucket; queue of the lock; key of
--       the bucket's minimum token.
-- ARGV: operation, time (empty: the server's clock), name of the lock, maximum number of events,
--       channel of the caller's process, whether the script publishes notifications ('1'), then the
--       arguments of the operation.
--
-- Arguments are texts and numbers, never code. Numbers stay below 2^53, so they are exact. An empty
-- text or 0 means none. Encoded values (codec.rs decodes them, and encodes the identity and the
-- extras of a request):
--   record    format, version, token, wake_at, last event, numbers of leases and tickets, then each
--             lease after its length. Format 2 has the tickets in a list, so that neither
--             enqueueing nor granting copies all tickets; the record has only the rank of the last
--             ticket and the ids of all. Format 1 has no list: tickets, if any, follow the leases,
--             as written by older versions
--   lease     numbers, identity, extras, then the requester and the reason of a release request
--   ticket    numbers, notification address, identity, extras. The address is `#`, the 32
--             characters that the channel of the waiter's process has in braces, and optionally 8
--             bytes that identify the waiter's latest acquire attempt; older tickets have the whole
--             channel
--   identity  lease id, mode, slots, holder: part of every event
--   extras    boot of the process, then JSON that the rules do not need
-- `wake_at` is never after the first expiry of a lease or ticket, and is raised only when it has
-- passed.

local encode, decode, call = struct.pack, struct.unpack, redis.call
local op, now, name, max_events = ARGV[1], tonumber(ARGV[2]), ARGV[3], ARGV[4]
if not now then
  local time = call('TIME')
  now = time[1] * 1000000 + time[2]
end
local record, names, due_index, events, min_token_key = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[6]
local arg1, arg2, arg3 = ARGV[7], ARGV[8], ARGV[9]
local stored = call('GET', record)
if stored and string.byte(stored) ~= 1 and string.byte(stored) ~= 2 then
  return redis.error_reply('LEASEHOLD a record of format ' .. tostring(string.byte(stored)))
end
-- fast_path.lua
if answer then
  return answer
end

-- Queue behind one exclusive holder: the release hands the lock over to the first ticket.
local queue = KEYS[5]
if format == 2 and lease_count == 1 and op == 'release' and now < wake_at and token < now and ARGV[9] == '' then
  local lease, tail = decode('>I4c0', stored, body)
  local lease_token, acquired_at, _, _, renewals, _, status, _, id, _, _, _, identity_end =
    decode('>ddddddBdc16BHBc0', lease)
  local ticket = id == ARGV[7] and lease_token == tonumber(ARGV[8]) and status ~= 2 and call('LINDEX', queue, 0)
  local since, ticket_ttl, ttl, notify_to, identity_at, next_id, mode, slots, next_identity_end, _
  if ticket then
    since, _, ticket_ttl, ttl, _, notify_to, identity_at = decode('>dddddBc0', ticket)
    next_id, mode, slots, _, next_identity_end = decode('>c16BHBc0', ticket, identity_at)
  end
  if ticket and mode == 0 and slots == 1 and next_id == string.sub(stored, tail + 8, tail + 23) then
    call('LPOP', queue)
    local held, waited = now > acquired_at and now - acquired_at or 0, now > since and now - since or 0
    last_event = call('XADD', events, '*', 'e',
      encode('>BdddddBc0BBBc0c0', 1, now, lease_token, held, renewals, 0, #last_event, last_event, 0, 0, #name, name,
        string.sub(lease, 58, identity_end - 1)))
    last_event = call('XADD', events, 'MAXLEN', '~', max_events, '*', 'e',
      encode('>BdddddBc0BBBc0c0', 0, now, now, waited, 0, 0, #last_event, last_event, 0, 0, #name, name,
        string.sub(ticket, identity_at, next_identity_end - 1)))
    local expires_at = now + (ticket_ttl < ttl and ticket_ttl or ttl)
    if expires_at < wake_at then
      wake_at = expires_at
      call('ZADD', due_index, wake_at, name)
    end
    local granted =
      encode('>ddddddBdc0BB', now, now, now, expires_at, 0, ttl, 0, 0, string.sub(ticket, identity_at), 0, 0)
    call('SET', record,
      encode('>BdddBc0HHI4c0c0c0', ticket_count > 1 and 2 or 1, version + 1, now, wake_at, #last_event, last_event, 1,
        ticket_count - 1, #granted, granted, ticket_count > 1 and string.sub(stored, tail, tail + 7) or '',
        string.sub(stored, tail + 24)))
    local channel, attempt_id = notify_to, ''
    if string.byte(notify_to) == 35 then
      channel, attempt_id =
        string.sub(ARGV[5], 1, -34) .. string.sub(notify_to, 2, 33) .. '}', string.sub(notify_to, 34)
    end
    if ARGV[6] == '1' and channel ~= ARGV[5] then
      redis.pcall('PUBLISH', channel, next_id .. (attempt_id == '' and '' or attempt_id .. granted))
    end
    return { 'released', now, { { granted, channel, next_id } }, lease }
  end
end

-- Same queue: a first request is appended to its end.
if lease_count == 1 and (format == 2 or ticket_count == 0) and op == 'acquire' and now < wake_at and ARGV[11] ~= ''
  and ARGV[12] == '' and ticket_count < 1000 then
  local identity = ARGV[7]
  local lease, tail = decode('>I4c0', stored, body)
  local mode, slots = decode('>BH', lease, 74)
  if mode == 0 and slots == 1 and not string.find(stored, string.sub(identity, 1, 16), 1, true) then
    local ttl, priority, ticket_ttl = tonumber(ARGV[9]), tonumber(ARGV[10]), tonumber(ARGV[11])
    local rank = now - 30000000 * priority
    if ticket_count == 0 or decode('>d', stored, tail) <= rank then
      if ticket_count == 0 then
        call('DEL', queue) -- A lost record may have left a list.
      end
      local notify_to = '#' .. string.sub(ARGV[5], -33, -2) .. ARGV[13]
      call('RPUSH', queue,
        encode('>dddddBc0c0c0', now, now + ticket_ttl, ticket_ttl, ttl, priority, #notify_to, notify_to,
          identity, ARGV[8]))
      last_event = call('XADD', events, '*', 'e',
        encode('>BdddddBc0BBBc0c0', 6, now, token, 0, 0, 0, #last_event, last_event, 0, 0, #name, name, identity))
      if now + ticket_ttl < wake_at then
        wake_at = now + ticket_ttl
        call('ZADD', due_index, wake_at, name)
      end
      call('SET', record,
        encode('>BdddBc0HHc0dc0c0', 2, version + 1, token, wake_at, #last_event, last_event, 1, ticket_count + 1,
          string.sub(stored, body, tail - 1), rank, string.sub(stored, tail + 8), string.sub(identity, 1, 16)))
      return { 'queued', now, {}, ticket_count, ticket_count + 1, 0, { lease } }
    end
  end
end

-- A repeated request of a waiter refreshes its ticket: only that ticket and the version change. The
-- index of the ticket is found by the ids in the record.
if format == 2 and op == 'acquire' and now < wake_at and ARGV[11] ~= '' and ARGV[12] == '' then
  local id, leases, tail = string.sub(ARGV[7], 1, 16), {}, body
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
  if ticket then
    local since, _, _, ttl, priority, _, identity_at = decode('>dddddBc0', ticket)
    if string.sub(ticket, identity_at, identity_at + 15) == id then
      local ticket_ttl, notify_to = tonumber(ARGV[11]), '#' .. string.sub(ARGV[5], -33, -2) .. ARGV[13]
      call('LSET', queue, ahead,
        encode('>dddddBc0c0', since, now + ticket_ttl, ticket_ttl, ttl, priority, #notify_to, notify_to,
          string.sub(ticket, identity_at)))
      -- Overwritten in place: the record ends with the ids of all waiters and may be long.
      call('SETRANGE', record, 1, encode('>d', version + 1))
      if now + ticket_ttl < wake_at then
        call('SETRANGE', record, 17, encode('>d', now + ticket_ttl))
        call('ZADD', due_index, now + ticket_ttl, name)
      end
      return { 'queued', now, {}, ahead, ticket_count, 0, leases }
    end
  end
end
