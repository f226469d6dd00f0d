-- Fast path: acquire, renew and release without a conflict and with no expired lease. Does the same
-- as `LockRecord::apply` of model/rules.rs, without any function, table or decoded value that is not
-- needed. An operation that is not simple enough gets no `answer`. Part of two scripts: one
-- operation (`apply.lua`) and a batch of operations (`batch.lua`).
--
-- Defined before: `op`, `now`, `stamp`, `name`, `stored` (of the current format), `record`, its key,
-- and `base`; `arg1`, `arg2` and `arg3`, the first three arguments of the operation. The answer to an
-- acquire is the time, which is also the token of the lease; to a release the record with the lease
-- as it was released; to a renewal the record with the renewed lease.

local answer
local version, token, wake_at, lease_count, ticket_count, body, _ = 0, 0, 0, 0, 0, 31, nil
if stored then
  version, token, wake_at, _, lease_count, ticket_count = decode('>dddBHH', stored, 2)
else
  -- A forgotten lock continues above its last token.
  token = tonumber(call('GET', base .. 'floor') or 0)
end

if lease_count == 0 and ticket_count == 0 and op == 'acquire' then
  if token < now and now <= MAX_TOKEN then
    -- The arguments are the identity, the extras and the TTL.
    local ttl = tonumber(arg3)
    local expires_at = now + ttl
    call('APPEND', base .. 'recent', encode('>HdBdddddBBBBc0c0', 45 + #name + #arg1, stamp, 0, now, now, 0, 0, 0, 0, 0, 0, #name, name, arg1))
    if not stored then
      call('ZADD', base .. 'names', 0, name)
    end
    if wake_at <= now or expires_at < wake_at then
      wake_at = expires_at
      call('ZADD', base .. 'due', wake_at, name)
    end
    call('SET', record,
      encode('>BdddBHHI4ddddddBdc0c0BB', 2, version + 1, now, wake_at, 255, 1, 0,
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
      call('APPEND', base .. 'recent', encode('>HdBdddddBBBBc0c0', 45 + #name + identity_end - identity_at, stamp, 1, now, lease_token, held,
        renewals, 0, 0, 0, 0, #name, name, string.sub(stored, identity_at, identity_end - 1)))
      call('SET', record, encode('>BdddBHH', 2, version + 1, token, wake_at, 255, 0, 0))
      answer = stored
    else
      ttl = tonumber(arg3) or ttl
      if wake_at <= now or now + ttl < wake_at then
        wake_at = now + ttl
        call('ZADD', base .. 'due', wake_at, name)
      end
      answer = encode('>BdddBHHI4ddddddBdc0', 2, version + 1, token, wake_at, 255, 1, ticket_count, length, lease_token,
        acquired_at, now, now + ttl, renewals + 1, ttl, status, requested_at, string.sub(stored, identity_at))
      call('SET', record, answer)
    end
  end
end
