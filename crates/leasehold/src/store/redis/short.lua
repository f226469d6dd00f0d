-- One operation on one lock, first part: reading the record, the short ways, and those of a queue. `apply.lua` goes on from
-- here; together they are one script.
--
-- KEYS: the lock's record; of its bucket: the names, when to sweep which, the events; the lock's queue; the bucket's floor.
-- ARGV: the operation, the time (empty: the server's own), the lock's name, how many events to keep, the inbox of the
--       caller's process, whether to publish to inboxes from here ('1'), then what the operation needs.
--
-- Texts and numbers only, never code. Numbers stay below 2^53, so they are exact. An empty text or 0 means: none.
-- Packed values (packed.rs reads them, and packs what a request brings along):
--   record  format, version, token, wake_at, last event, how many leases and tickets, then each lease with its length
--           before it. Format 2 has its tickets in a list, so that joining and serving do not copy all who wait, and
--           only the rank of the last and the ids of all in the record. Format 1 has no list: if there are tickets, they
--           follow the leases, as an older leasehold has written them
--   lease   numbers, then who, what the asker said, who asked it to stop and why
--   ticket  numbers, its inbox, then who and what the asker said; the inbox is `#`, the 32 letters
--           that its process's channel has in braces, and perhaps 8 bytes by which the waiter knows its last asking; older
--           tickets have the whole channel
--   who     lease id, mode, slots, holder: what every event tells
-- `wake_at` is never after the first end of a lease or ticket, and moves only when it would be too late.

local pack, open, call = struct.pack, struct.unpack, redis.call
local op, now, name, max_events = ARGV[1], tonumber(ARGV[2]), ARGV[3], ARGV[4]
if not now then
  local time = call('TIME')
  now = time[1] * 1000000 + time[2]
end
local record, names, due_index, events, floor = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[6]
local one, two, three = ARGV[7], ARGV[8], ARGV[9]
local stored = call('GET', record)
if stored and string.byte(stored) ~= 1 and string.byte(stored) ~= 2 then
  return redis.error_reply('LEASEHOLD a record of format ' .. tostring(string.byte(stored)))
end
-- ways.lua
if answer then
  return answer
end

-- A queue behind one holder, and everybody wants it alone: the release hands over to the first ticket…
local queue = KEYS[5]
if format == 2 and lease_count == 1 and op == 'release' and now < wake_at and token < now and ARGV[9] == '' then
  local lease, tail = open('>I4c0', stored, body)
  local own, acquired_at, _, _, renewals, _, status, _, id, _, _, _, who_end = open('>ddddddBdc16BHBc0', lease)
  local ticket = id == ARGV[7] and own == tonumber(ARGV[8]) and status ~= 2 and call('LINDEX', queue, 0)
  local since, patience, ttl, inbox, who_at, next_id, mode, slots, next_who_end, _
  if ticket then
    since, _, patience, ttl, _, inbox, who_at = open('>dddddBc0', ticket)
    next_id, mode, slots, _, next_who_end = open('>c16BHBc0', ticket, who_at)
  end
  if ticket and mode == 0 and slots == 1 and next_id == string.sub(stored, tail + 8, tail + 23) then
    call('LPOP', queue)
    local held, waited = now > acquired_at and now - acquired_at or 0, now > since and now - since or 0
    last_event = call('XADD', events, '*', 'e',
      pack('>BdddddBc0BBBc0c0', 1, now, own, held, renewals, 0, #last_event, last_event, 0, 0, #name, name,
        string.sub(lease, 58, who_end - 1)))
    last_event = call('XADD', events, 'MAXLEN', '~', max_events, '*', 'e',
      pack('>BdddddBc0BBBc0c0', 0, now, now, waited, 0, 0, #last_event, last_event, 0, 0, #name, name,
        string.sub(ticket, who_at, next_who_end - 1)))
    local expires_at = now + (patience < ttl and patience or ttl)
    if expires_at < wake_at then
      wake_at = expires_at
      call('ZADD', due_index, wake_at, name)
    end
    local granted =
      pack('>ddddddBdc0BB', now, now, now, expires_at, 0, ttl, 0, 0, string.sub(ticket, who_at), 0, 0)
    call('SET', record,
      pack('>BdddBc0HHI4c0c0c0', ticket_count > 1 and 2 or 1, version + 1, now, wake_at, #last_event, last_event, 1,
        ticket_count - 1, #granted, granted, ticket_count > 1 and string.sub(stored, tail, tail + 7) or '',
        string.sub(stored, tail + 24)))
    local channel, asking = inbox, ''
    if string.byte(inbox) == 35 then
      channel, asking = string.sub(ARGV[5], 1, -34) .. string.sub(inbox, 2, 33) .. '}', string.sub(inbox, 34)
    end
    if ARGV[6] == '1' and channel ~= ARGV[5] then
      redis.pcall('PUBLISH', channel, next_id .. (asking == '' and '' or asking .. granted))
    end
    return { 'released', now, { { granted, channel, next_id } }, lease }
  end
end

-- …and whoever asks for the first time stands at its end.
if lease_count == 1 and (format == 2 or ticket_count == 0) and op == 'acquire' and now < wake_at and ARGV[11] ~= ''
  and ARGV[12] == '' and ticket_count < 1000 then
  local who = ARGV[7]
  local lease, tail = open('>I4c0', stored, body)
  local mode, slots = open('>BH', lease, 74)
  if mode == 0 and slots == 1 and not string.find(stored, string.sub(who, 1, 16), 1, true) then
    local ttl, priority, patience = tonumber(ARGV[9]), tonumber(ARGV[10]), tonumber(ARGV[11])
    local rank = now - 30000000 * priority
    if ticket_count == 0 or open('>d', stored, tail) <= rank then
      if ticket_count == 0 then
        call('DEL', queue) -- A record that was lost may have left one.
      end
      local inbox = '#' .. string.sub(ARGV[5], -33, -2) .. ARGV[13]
      call('RPUSH', queue,
        pack('>dddddBc0c0c0', now, now + patience, patience, ttl, priority, #inbox, inbox, who, ARGV[8]))
      last_event = call('XADD', events, '*', 'e',
        pack('>BdddddBc0BBBc0c0', 6, now, token, 0, 0, 0, #last_event, last_event, 0, 0, #name, name, who))
      if now + patience < wake_at then
        wake_at = now + patience
        call('ZADD', due_index, wake_at, name)
      end
      call('SET', record,
        pack('>BdddBc0HHc0dc0c0', 2, version + 1, token, wake_at, #last_event, last_event, 1, ticket_count + 1,
          string.sub(stored, body, tail - 1), rank, string.sub(stored, tail + 8), string.sub(who, 1, 16)))
      return { 'queued', now, {}, ticket_count, ticket_count + 1, 0, { lease } }
    end
  end
end

-- A waiter that asks again refreshes its ticket: only that ticket changes, and the number of changes. Its place is known
-- from the ids in the record.
if format == 2 and op == 'acquire' and now < wake_at and ARGV[11] ~= '' and ARGV[12] == '' then
  local id, leases, tail = string.sub(ARGV[7], 1, 16), {}, body
  for at = 1, lease_count do
    leases[at], tail = open('>I4c0', stored, tail)
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
    local since, _, _, ttl, priority, _, who_at = open('>dddddBc0', ticket)
    if string.sub(ticket, who_at, who_at + 15) == id then
      local patience, inbox = tonumber(ARGV[11]), '#' .. string.sub(ARGV[5], -33, -2) .. ARGV[13]
      call('LSET', queue, ahead,
        pack('>dddddBc0c0', since, now + patience, patience, ttl, priority, #inbox, inbox, string.sub(ticket, who_at)))
      -- In place: the record has the ids of all who wait behind it.
      call('SETRANGE', record, 1, pack('>d', version + 1))
      if now + patience < wake_at then
        call('SETRANGE', record, 17, pack('>d', now + patience))
        call('ZADD', due_index, now + patience, name)
      end
      return { 'queued', now, {}, ahead, ticket_count, 0, leases }
    end
  end
end
