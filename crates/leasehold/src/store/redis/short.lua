-- One operation on one lock, first part: reading the record, and the short ways. `apply.lua` goes on from here; the two
-- are one script.
--
-- KEYS: the lock's record; of its bucket: the names, when to sweep which, the events.
-- ARGV: the operation, the time (empty: the server's own), the lock's name, how many events to keep, the inbox of the
--       caller's process, whether to publish to inboxes from here ('1'), then what the operation needs.
--
-- Texts and numbers only, never code. Numbers stay below 2^53, so they are exact. An empty text or 0 means: none.
-- Packed values (packed.rs reads them, and packs what a request brings along):
--   record  format, version, token, wake_at, last event, how many leases and tickets, then each with its length
--   lease   numbers, then who, what the asker said, who asked it to stop and why
--   ticket  numbers, its inbox, then who and what the asker said
--   who     lease id, mode, slots, holder: what every event tells
-- `wake_at` is never after the first end of a lease or ticket, and moves only when it would be too late.

local pack, open = struct.pack, struct.unpack
local op, now, name, max_events = ARGV[1], tonumber(ARGV[2]), ARGV[3], ARGV[4]
if not now then
  local time = redis.call('TIME')
  now = time[1] * 1000000 + time[2]
end
local stored = redis.call('GET', KEYS[1])
local format, version, token, wake_at, last_event, lease_count, ticket_count, body = 1, 0, 0, 0, '', 0, 0, nil
if stored then
  if string.byte(stored) ~= 1 then
    return redis.error_reply('LEASEHOLD a record of format ' .. tostring(string.byte(stored)))
  end
  format, version, token, wake_at, last_event, lease_count, ticket_count, body = open('>BdddBc0HH', stored)
end

-- Nobody is in the way and nothing can have ended: the same as `apply.lua` would do, without a function, a table or a
-- value unpacked that is not needed. What is not quite so simple falls through.

if lease_count == 0 and ticket_count == 0 and op == 'acquire' and token < now and now < 9007199254740992 then
  local who, ttl = ARGV[7], tonumber(ARGV[9])
  local expires_at = now + ttl
  last_event = redis.call('XADD', KEYS[4], 'MAXLEN', '~', max_events, '*', 'e',
    pack('>BdddddBc0BBBc0', 0, now, now, 0, 0, 0, #last_event, last_event, 0, 0, #name, name) .. who)
  if not stored then
    redis.call('ZADD', KEYS[2], 0, name)
  end
  if wake_at <= now or expires_at < wake_at then
    wake_at = expires_at
    redis.call('ZADD', KEYS[3], wake_at, name)
  end
  local said = ARGV[8]
  redis.call('SET', KEYS[1],
    pack('>BdddBc0HHI4ddddddBd', 1, version + 1, now, wake_at, #last_event, last_event, 1, 0, 59 + #who + #said, now, now,
      now, expires_at, 0, ttl, 0, 0) .. who .. said .. '\0\0')
  return now
end

if lease_count == 1 and now < wake_at and (op == 'renew' or (op == 'release' and ticket_count == 0 and ARGV[9] == '')) then
  local lease, rest = open('>I4c0', stored, body)
  local own, acquired_at, _, _, renewals, ttl, status, asked_at, id, mode, slots, holder, who_end =
    open('>ddddddBdc16BHBc0', lease)
  if id == ARGV[7] and own == tonumber(ARGV[8]) and status ~= 2 then
    if op == 'release' then
      local held = now > acquired_at and now - acquired_at or 0
      last_event = redis.call('XADD', KEYS[4], 'MAXLEN', '~', max_events, '*', 'e',
        pack('>BdddddBc0BBBc0', 1, now, own, held, renewals, 0, #last_event, last_event, 0, 0, #name, name)
        .. string.sub(lease, 58, who_end - 1))
      redis.call('SET', KEYS[1], pack('>BdddBc0HH', 1, version + 1, token, wake_at, #last_event, last_event, 0, 0))
      return lease
    end
    ttl = tonumber(ARGV[9]) or ttl
    if now + ttl >= wake_at then
      lease = pack('>ddddddBd', own, acquired_at, now, now + ttl, renewals + 1, ttl, status, asked_at)
        .. string.sub(lease, 58)
      redis.call('SET', KEYS[1],
        pack('>BdddBc0HHI4', 1, version + 1, token, wake_at, #last_event, last_event, 1, ticket_count, #lease)
        .. lease .. string.sub(stored, rest))
      return lease
    end
  end
end
