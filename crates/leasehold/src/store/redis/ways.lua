-- The short ways: nobody is in the way and nothing can have ended. The same as `apply.lua` would do, without a function, a
-- table or a value unpacked that is not needed. What is not quite so simple has no `answer`. This is part of two scripts:
-- one operation (`short.lua`), and several at once (`many.lua`).
--
-- Before it: `op`, `now`, `name`, `max_events`, `stored`; the keys `record`, `names`, `due_index`, `events`, `floor`; `one`, `two` and
-- `three`: the first three that the operation needs. The answer is the time, which is also the token of what was granted;
-- or the record with the lease as it was released, or is renewed.
--
-- The history is cut to its length at two of sixteen versions: each time would cost more than it saves, and at one of them
-- might be never, where one kind of operation has all the odd versions.

local answer
local format, version, token, wake_at, last_event, lease_count, ticket_count, body = 1, 0, 0, 0, '', 0, 0, nil
if stored then
  format, version, token, wake_at, last_event, lease_count, ticket_count, body = open('>BdddBc0HH', stored)
else
  -- A lock that was forgotten begins above its last token.
  token = tonumber(call('GET', floor) or 0)
end

if lease_count == 0 and ticket_count == 0 and op == 'acquire' then
  if token < now and now < 9007199254740992 then
    -- `one` says who, `two` what it said, `three` is the ttl.
    local ttl = tonumber(three)
    local expires_at = now + ttl
    local event = pack('>BdddddBc0BBBc0c0', 0, now, now, 0, 0, 0, #last_event, last_event, 0, 0, #name, name, one)
    if version % 16 < 2 then
      last_event = call('XADD', events, 'MAXLEN', '~', max_events, '*', 'e', event)
    else
      last_event = call('XADD', events, '*', 'e', event)
    end
    if not stored then
      call('ZADD', names, 0, name)
    end
    if wake_at <= now or expires_at < wake_at then
      wake_at = expires_at
      call('ZADD', due_index, wake_at, name)
    end
    call('SET', record,
      pack('>BdddBc0HHI4ddddddBdc0c0BB', 1, version + 1, now, wake_at, #last_event, last_event, 1, 0, 59 + #one + #two, now,
        now, now, expires_at, 0, ttl, 0, 0, one, two, 0, 0))
    answer = now
  end
elseif lease_count == 1 and now < wake_at and (op == 'renew' or (op == 'release' and ticket_count == 0 and three == '')) then
  local length, own, acquired_at, _, _, renewals, ttl, status, asked_at, id, _, _, _, who_end =
    open('>I4ddddddBdc16BHBc0', stored, body)
  if id == one and own == tonumber(two) and status ~= 2 then
    local who_at = body + 61
    if op == 'release' then
      local held = now > acquired_at and now - acquired_at or 0
      local event = pack('>BdddddBc0BBBc0c0', 1, now, own, held, renewals, 0, #last_event, last_event, 0, 0, #name, name,
        string.sub(stored, who_at, who_end - 1))
      if version % 16 < 2 then
        last_event = call('XADD', events, 'MAXLEN', '~', max_events, '*', 'e', event)
      else
        last_event = call('XADD', events, '*', 'e', event)
      end
      call('SET', record, pack('>BdddBc0HH', 1, version + 1, token, wake_at, #last_event, last_event, 0, 0))
      answer = stored
    else
      ttl = tonumber(three) or ttl
      if now + ttl >= wake_at then
        answer = pack('>BdddBc0HHI4ddddddBdc0', format, version + 1, token, wake_at, #last_event, last_event, 1, ticket_count,
          length, own, acquired_at, now, now + ttl, renewals + 1, ttl, status, asked_at, string.sub(stored, who_at))
        call('SET', record, answer)
      end
    end
  end
end
