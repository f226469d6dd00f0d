-- Fast path: acquire, renew and release without a conflict and with no expired lease. Does the same
-- as `LockRecord::apply` of model/rules.rs, without any function, table or decoded value that is not
-- needed. An operation that is not simple enough gets no `answer`. Part of two scripts: one
-- operation (`apply.lua`) and a batch of operations (`batch.lua`).
--
-- Defined before: `op`, `now`, `name`, `max_events`, `stored`; the keys `record`, `names`,
-- `due_index`, `events` and `min_token_key`; `arg1`, `arg2` and `arg3`, the first three arguments
-- of the operation. The answer to an acquire is the time, which is also the token of the lease; to
-- a release the record with the lease as it was released; to a renewal the record with the renewed
-- lease.
--
-- The history is trimmed at two of sixteen versions: trimming each time would cost more than it
-- saves, and trimming at one of sixteen might never happen, where one kind of operation has all the
-- odd versions.

local answer
local version, token, wake_at, last_event, lease_count, ticket_count, body = 0, 0, 0, '', 0, 0, nil
if stored then
  version, token, wake_at, last_event, lease_count, ticket_count, body = decode('>dddBc0HH', stored, 2)
else
  -- A forgotten lock continues above its last token.
  token = tonumber(call('GET', min_token_key) or 0)
end

if lease_count == 0 and ticket_count == 0 and op == 'acquire' then
  if token < now and now <= MAX_TOKEN then
    -- The arguments are the identity, the extras and the TTL.
    local ttl = tonumber(arg3)
    local expires_at = now + ttl
    local event = encode('>BdddddBc0BBBc0c0', 0, now, now, 0, 0, 0, #last_event, last_event, 0, 0, #name, name, arg1)
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
      encode('>BdddBc0HHI4ddddddBdc0c0BB', 1, version + 1, now, wake_at, #last_event, last_event, 1, 0,
        59 + #arg1 + #arg2, now, now, now, expires_at, 0, ttl, 0, 0, arg1, arg2, 0, 0))
    answer = now
  end
elseif lease_count == 1 and (now < wake_at or ticket_count == 0)
  and (op == 'renew' or (op == 'release' and ticket_count == 0 and arg3 == '')) then
  local length, lease_token, acquired_at, _, expires_at, renewals, ttl, status, requested_at, id, _, _, _,
    identity_end = decode('>I4ddddddBdc16BHBc0', stored, body)
  if id == arg1 and lease_token == tonumber(arg2) and status ~= 2 and now < expires_at then
    local identity_at = body + 61
    if op == 'release' then
      local held = now > acquired_at and now - acquired_at or 0
      local event = encode('>BdddddBc0BBBc0c0', 1, now, lease_token, held, renewals, 0, #last_event,
        last_event, 0, 0, #name, name, string.sub(stored, identity_at, identity_end - 1))
      if version % 16 < 2 then
        last_event = call('XADD', events, 'MAXLEN', '~', max_events, '*', 'e', event)
      else
        last_event = call('XADD', events, '*', 'e', event)
      end
      call('SET', record, encode('>BdddBc0HH', 1, version + 1, token, wake_at, #last_event, last_event, 0, 0))
      answer = stored
    else
      ttl = tonumber(arg3) or ttl
      if wake_at <= now or now + ttl < wake_at then
        wake_at = now + ttl
        call('ZADD', due_index, wake_at, name)
      end
      answer = encode('>BdddBc0HHI4ddddddBdc0', 1, version + 1, token, wake_at, #last_event, last_event,
        1, ticket_count, length, lease_token, acquired_at, now, now + ttl, renewals + 1, ttl, status,
        requested_at, string.sub(stored, identity_at))
      call('SET', record, answer)
    end
  end
end
