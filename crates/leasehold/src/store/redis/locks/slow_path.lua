-- One operation on one lock, third part: the slow path. It implements `LockRecord::apply` of
-- model/rules.rs with the same functions, and stores the result. Every change of the rules must be
-- repeated here; the differential test compares every outcome, record and event.

local MAX_TOKEN = 9007199254740991
local channel = ARGV[5]
local notify_to = '#' .. string.sub(channel, -33, -2) .. (op == 'acquire' and ARGV[13] or '')

-- === The record ===

local MAX_HOLDERS, MAX_WAITERS = 1000, 1000
local MIN_TTL, MAX_TTL = 1000, 10 * 365 * 24 * 3600 * 1000000
local PRIORITY_STEP = 30 * 1000000
local PROCESS_GONE = 'its process is gone'

-- Leases are decoded. Tickets stay encoded until they are needed, because a queue may be long.
local leases, tickets = {}, {}
for at = 1, lease_count do
  local packed
  packed, body = decode(ITEM, stored, body)
  leases[at] = decode_lease(packed)
end
local listed = format == LISTED and call('LRANGE', queue, 0, -1) or {}
for at = 1, format == LISTED and #listed or ticket_count do
  if format == LISTED then
    tickets[at] = listed[at]
  else
    tickets[at], body = decode(ITEM, stored, body)
  end
end

local handed_over, changed = {}, false
-- The first lease that this step ended without a release, encoded.
local took_over
local swept = { leases = 0, tickets = 0, served = 0 }
local old_wake_at = wake_at
-- Whether a lease or ticket may have expired, so that `wake_at` must be recomputed.
local due = stored and wake_at <= now

-- Lowers `wake_at` to the expiry of a lease or ticket: it must not be later.
local function lower_wake_at(time)
  if wake_at == 0 or time < wake_at then
    wake_at = time
  end
end

local function append_event(kind, of, event_token, after, renewals, until_, by, reason)
  changed = true
  last_event = call('XADD', events, 'MAXLEN', '~', max_events, '*', 'e',
    encode(EVENT, KINDS[kind], now, event_token, math.max(after, 0), renewals, until_, #last_event, last_event, #by, by,
      #reason, reason, #name, name) .. of.identity)
end

local function record_lease_event(kind, lease, until_, by, reason)
  append_event(kind, lease, lease.token, now - lease.acquired_at, lease.renewals, until_, by, reason)
end

local function record_ticket_event(kind, ticket, reason)
  append_event(kind, ticket, token, now - ticket.since, 0, 0, '', reason)
end

-- --- capacity of a lock and order of its queue (model/queue.rs)

local function has_capacity(request)
  local slots = request.slots
  for _, lease in ipairs(leases) do
    if lease.mode ~= request.mode then
      return false
    end
    if request.mode == EXCLUSIVE then
      slots = math.min(slots, lease.slots)
    end
  end
  return #leases < (request.mode == SHARED and MAX_HOLDERS or slots)
end

local function rank(priority, since)
  return since - PRIORITY_STEP * priority
end

-- Returns the number of tickets that rank before or equal to the request. Searches from the end,
-- where most requests belong.
local function insertion_index(request)
  local own_rank, ahead = rank(request.priority, now), #tickets
  while ahead > 0 do
    local ticket = decode_ticket(tickets[ahead])
    if rank(ticket.priority, ticket.since) <= own_rank then
      break
    end
    ahead = ahead - 1
  end
  return ahead
end

-- --- shared by the operations

local function active_lease(id)
  for _, lease in ipairs(leases) do
    if lease.id == id and lease.status ~= RELEASED then
      return lease
    end
  end
end

local function ticket_index(id)
  for at, packed in ipairs(tickets) do
    if id_of(packed) == id then
      return at
    end
  end
end

-- `Token::next`. A clock beyond 2^53 µs is broken; then tokens are counted up, which keeps them in
-- bounds.
local function next_token()
  local by_clock = now <= MAX_TOKEN and now or 0
  return math.min(math.max(token + 1, by_clock), MAX_TOKEN)
end

local function grant(request, duration, since)
  token = next_token()
  local lease = {
    token = token, acquired_at = now, renewed_at = now, expires_at = now + duration, renewals = 0, ttl = request.ttl,
    status = ACTIVE, requested_at = 0, id = request.id, mode = request.mode, slots = request.slots,
    holder = request.holder, boot = request.boot, identity = request.identity, extras = request.extras,
    requested_by = '', request_reason = '',
  }
  append_event('acquired', lease, token, now - since, 0, 0, '', '')
  leases[#leases + 1] = lease
  lower_wake_at(lease.expires_at)
  return lease
end

local function encode_leases()
  local packed = {}
  for at, lease in ipairs(leases) do
    packed[at] = encode_lease(lease)
  end
  return packed
end

local function conflict_fields(full)
  return #tickets, full and 1 or 0, encode_leases()
end

local function queued(ahead)
  return { 'queued', now, handed_over, ahead, conflict_fields(false) }
end

local function conflict(full)
  return { 'conflict', now, handed_over, conflict_fields(full) }
end

local function not_held()
  return { 'not_held', now, handed_over, token, encode_leases() }
end

local function lease_reply(outcome, lease)
  return { outcome, now, handed_over, encode_lease(lease) }
end

-- Returns the reply for a granted lease. A lease that was granted in this step also names the lease
-- that it took over.
local function granted(lease)
  local answer = lease_reply('granted', lease)
  if took_over and lease.acquired_at == now then
    answer[5] = took_over
  end
  return answer
end

-- --- expiry and grants

local function end_leases(kind, by, reason, ends)
  local live, ended = {}, {}
  for _, lease in ipairs(leases) do
    local list = ends(lease) and ended or live
    list[#list + 1] = lease
  end
  leases = live
  for _, lease in ipairs(ended) do
    if not took_over and lease.status ~= RELEASED then
      took_over = encode_lease(lease)
    end
    record_lease_event(kind, lease, 0, by, reason)
    swept.leases = swept.leases + 1
  end
end

local function end_tickets(reason, ends)
  local live, ended = {}, {}
  for _, packed in ipairs(tickets) do
    local ticket = decode_ticket(packed)
    if ends(ticket) then
      ended[#ended + 1] = ticket
    else
      live[#live + 1] = packed
    end
  end
  tickets = live
  for _, ticket in ipairs(ended) do
    record_ticket_event('withdrawn', ticket, reason)
    swept.tickets = swept.tickets + 1
  end
end

local function expire_dead(is_dead)
  end_leases('expired', '', PROCESS_GONE, function(lease)
    return lease.status ~= RELEASED and is_dead(lease)
  end)
  end_tickets(PROCESS_GONE, is_dead)
end

local function steal(request, after)
  while not active_lease(request.id) and not has_capacity(request) do
    local stalest
    for _, lease in ipairs(leases) do
      local stale = lease.status ~= RELEASED and lease.renewed_at + after <= now
      if stale and (not stalest or lease.renewed_at < stalest.renewed_at) then
        stalest = lease
      end
    end
    if not stalest then
      return
    end
    end_leases('stolen', request.holder, '', function(lease)
      return lease.token == stalest.token
    end)
  end
end

local function rebase_times()
  local last_seen = 0
  for _, lease in ipairs(leases) do
    last_seen = math.max(last_seen, lease.renewed_at)
  end
  for at, packed in ipairs(tickets) do
    tickets[at] = decode_ticket(packed)
    last_seen = math.max(last_seen, tickets[at].since)
  end
  local shift = math.max(last_seen - now, 0)
  for _, lease in ipairs(leases) do
    local duration = math.max(lease.expires_at - lease.renewed_at, 0)
    if duration < MIN_TTL or duration > MAX_TTL then
      duration = lease.ttl
    end
    lease.acquired_at = math.max(lease.acquired_at - shift, 0)
    lease.renewed_at = now
    lease.expires_at = now + duration
    changed = true
  end
  for at, ticket in ipairs(tickets) do
    ticket.since = math.max(ticket.since - shift, 0)
    ticket.expires_at = now + ticket.ticket_ttl
    tickets[at] = encode_ticket(ticket)
    changed = true
  end
end

local function grant_waiters()
  while tickets[1] do
    local ticket = decode_ticket(tickets[1])
    if not has_capacity(ticket) then
      return
    end
    table.remove(tickets, 1)
    -- Not the whole TTL: if this waiter has died, the waiters behind it wait no longer than its
    -- ticket lasts.
    local lease = grant(ticket, math.min(ticket.ticket_ttl, ticket.ttl), ticket.since)
    local to, attempt_id = ticket.notify_to, ''
    if string.byte(to) == 35 then
      to, attempt_id = string.sub(channel, 1, -34) .. string.sub(to, 2, 33) .. '}', string.sub(to, 34)
    end
    handed_over[#handed_over + 1] = { encode_lease(lease), to, lease.id, attempt_id }
    swept.served = swept.served + 1
  end
end

local function expire_and_grant(request, steal_after)
  if op == 'restarted' then
    due = true
    rebase_times()
    expire_dead(function(of)
      return of.boot == ARGV[7]
    end)
  end
  if op == 'sweep' and ARGV[7] then
    local dead = {}
    for at = 7, #ARGV do
      dead[ARGV[at]] = true
    end
    expire_dead(function(of)
      return dead[of.id]
    end)
  end
  if due then
    local over = function(of)
      return of.expires_at <= now
    end
    end_leases('expired', '', '', over)
    end_tickets('', over)
  end
  if steal_after then
    steal(request, steal_after)
  end
  grant_waiters()
end

-- Ends one lease and grants the lock to waiters.
local function end_lease(ended, kind, by, reason)
  for at = #leases, 1, -1 do
    if leases[at].token == ended.token then
      table.remove(leases, at)
    end
  end
  record_lease_event(kind, ended, 0, by, reason)
  grant_waiters()
end

-- --- the operations

local function first_request(request, queue)
  local ahead = insertion_index(request)
  if ahead == 0 and has_capacity(request) then
    return granted(grant(request, request.ttl, now))
  end
  local full = #tickets >= MAX_WAITERS
  if queue and not full then
    request.since, request.expires_at, request.ticket_ttl, request.notify_to = now, now + queue, queue, notify_to
    record_ticket_event('queued', request, '')
    table.insert(tickets, ahead + 1, encode_ticket(request))
    lower_wake_at(request.expires_at)
    return queued(ahead)
  end
  return conflict(full)
end

local function acquire(request, queue)
  local lease = active_lease(request.id)
  if lease then
    lease.renewed_at = now
    lease.expires_at = now + lease.ttl
    lower_wake_at(lease.expires_at)
    changed = true
    return granted(lease)
  end
  local at = ticket_index(request.id)
  if at and queue then
    local ticket = decode_ticket(tickets[at])
    ticket.ticket_ttl = queue
    ticket.expires_at = now + queue
    ticket.notify_to = notify_to
    tickets[at] = encode_ticket(ticket)
    lower_wake_at(ticket.expires_at)
    changed = true
    return queued(at - 1)
  elseif at then
    end_tickets('', function(ticket)
      return ticket.id == request.id
    end)
    grant_waiters()
    return conflict(false)
  end
  return first_request(request, queue)
end

local function renew(id, lease_token, ttl)
  local lease = active_lease(id)
  if not lease or lease.token ~= lease_token then
    return not_held()
  end
  lease.ttl = ttl or lease.ttl
  lease.renewed_at = now
  lease.expires_at = now + lease.ttl
  lease.renewals = lease.renewals + 1
  lower_wake_at(lease.expires_at)
  changed = true
  return lease_reply('renewed', lease)
end

-- Retains a released lease until `until_`: the lock stays locked although the holder has finished.
local function hold_until(lease, until_)
  record_lease_event('released', lease, until_, '', '')
  lease.renewed_at = now
  lease.expires_at = until_
  lease.status = RELEASED
  lower_wake_at(until_)
  return lease
end

local function release(id, lease_token, at_least)
  local found
  for _, lease in ipairs(leases) do
    if lease.id == id and lease.token == lease_token then
      found = lease
      break
    end
  end
  if not found then
    return not_held()
  end
  if found.status == RELEASED then
    return lease_reply('released', found) -- Repeated because the first reply was lost.
  end
  if at_least and now < found.acquired_at + at_least then
    return lease_reply('released', hold_until(found, found.acquired_at + at_least))
  end
  end_lease(found, 'released', '', '')
  return lease_reply('released', found)
end

local function withdraw(id)
  if ticket_index(id) then
    end_tickets('', function(ticket)
      return ticket.id == id
    end)
  end
  local lease = active_lease(id)
  if lease then
    end_lease(lease, 'released', '', '')
  end
  grant_waiters()
  return { 'withdrawn', now, handed_over }
end

local function request_release(target_token, by, reason)
  local requested = {}
  for _, lease in ipairs(leases) do
    if (not target_token or lease.token == target_token) and lease.status ~= RELEASED then
      lease.status = RELEASING
      lease.requested_by, lease.request_reason, lease.requested_at = by, reason, now
      requested[#requested + 1] = lease
    end
  end
  for _, lease in ipairs(requested) do
    record_lease_event('release_requested', lease, 0, by, reason)
  end
  if #requested == 0 then
    return not_held()
  end
  return { 'release_requested', now, handed_over, #requested }
end

local function force_release(lease_token, by, reason)
  for _, lease in ipairs(leases) do
    if lease.token == lease_token then
      -- The holder may still be working: from here on its token is outdated, also for `fence
      -- check`.
      token = next_token()
      end_lease(lease, 'forced', by, reason)
      return lease_reply('forced', lease)
    end
  end
  return not_held()
end

-- === One operation ===

local reply
if op == 'acquire' then
  local request = { ttl = tonumber(ARGV[9]), priority = tonumber(ARGV[10]) }
  decode_request(request, ARGV[7] .. ARGV[8], 1)
  expire_and_grant(request, tonumber(ARGV[12]))
  reply = acquire(request, tonumber(ARGV[11]))
else
  expire_and_grant()
  if op == 'renew' then
    reply = renew(ARGV[7], tonumber(ARGV[8]), tonumber(ARGV[9]))
  elseif op == 'renew_logged' then
    reply = renew(ARGV[7], tonumber(ARGV[8]), tonumber(ARGV[9]))
    if reply[1] == 'renewed' then
      record_lease_event('renewed', active_lease(ARGV[7]), 0, '', '')
    end
  elseif op == 'release' then
    reply = release(ARGV[7], tonumber(ARGV[8]), tonumber(ARGV[9]))
  elseif op == 'withdraw' then
    reply = withdraw(ARGV[7])
  elseif op == 'request_release' then
    reply = request_release(tonumber(ARGV[7]), ARGV[8], ARGV[9])
  elseif op == 'force_release' then
    reply = force_release(tonumber(ARGV[7]), ARGV[8], ARGV[9])
  else
    reply = { 'swept', now, handed_over, swept.leases, swept.tickets, swept.served }
  end
end

-- === Save ===

-- Writes the changes of the waiter list.
local function save_queue()
  if #listed ~= #tickets then
    call('DEL', queue)
    for from = 1, #tickets, 500 do
      call('RPUSH', queue, unpack(tickets, from, math.min(from + 499, #tickets)))
    end
    return
  end
  for at, packed in ipairs(tickets) do
    if packed ~= listed[at] then
      call('LSET', queue, at - 1, packed)
    end
  end
end

if due then
  wake_at = 0
  for _, lease in ipairs(leases) do
    lower_wake_at(lease.expires_at)
  end
  for _, packed in ipairs(tickets) do
    lower_wake_at(decode_ticket(packed).expires_at)
  end
end
if changed then
  version = version + 1
  if not stored then
    call('ZADD', names, 0, name)
  end
end
if wake_at ~= old_wake_at then
  if wake_at == 0 then
    call('ZREM', due_index, name)
  else
    call('ZADD', due_index, wake_at, name)
  end
end
if changed or wake_at ~= old_wake_at then
  local tail = ''
  if tickets[1] then
    local last, ids = decode_ticket(tickets[#tickets]), {}
    for at, packed in ipairs(tickets) do
      ids[at] = id_of(packed)
    end
    tail = encode('>d', rank(last.priority, last.since)) .. table.concat(ids)
  end
  save_queue()
  call('SET', record,
    encode(RECORD, tickets[1] and LISTED or INLINE, version, token, wake_at, #last_event, last_event, #leases, #tickets)
    .. encode_list(encode_leases()) .. tail)
end

-- A notification is a hint: if it may not be sent, the writes must stand.
if ARGV[6] == '1' then
  for _, grant in ipairs(handed_over) do
    if grant[2] ~= channel then
      local attempt_id = grant[4]
      redis.pcall('PUBLISH', grant[2], grant[3] .. (attempt_id == '' and '' or attempt_id .. grant[1]))
    end
  end
end
return reply
