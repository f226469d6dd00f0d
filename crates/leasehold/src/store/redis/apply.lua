-- One operation on one lock, second part: `LockRecord::apply` of model/rules.rs, with the same names in the same order,
-- and the storing around it. Whatever changes there changes here; a property test compares every outcome, record and
-- event.

local INLINE, LISTED = 1, 2
local RECORD, LEASE, TICKET = '>BdddBc0HH', '>ddddddBd', '>dddddBc0'
local EVENT, WHO, SAID, WHY, ROW = '>BdddddBc0Bc0Bc0Bc0', '>c16BHBc0', '>Bc0I4c0', '>Bc0Bc0', '>I4c0'
local EXCLUSIVE, SHARED = 0, 1
local ACTIVE, RELEASING, RELEASED = 0, 1, 2
local KINDS = { acquired = 0, released = 1, expired = 2, stolen = 3, forced = 4, asked = 5, queued = 6, left = 7,
  renewed = 8 }
local MAX_TOKEN = 9007199254740991
local channel = ARGV[5]
local inbox = '#' .. string.sub(channel, -33, -2) .. (op == 'acquire' and ARGV[13] or '')

-- === Packed and unpacked ===

-- Who it is and what it said, in both forms: events and new leases take them as they are.
local function open_ask(ask, packed, from)
  local who_end, said_end
  ask.id, ask.mode, ask.slots, ask.holder, who_end = open(WHO, packed, from)
  ask.boot, ask.ask, said_end = open(SAID, packed, who_end)
  ask.who, ask.said = string.sub(packed, from, who_end - 1), string.sub(packed, who_end, said_end - 1)
  return said_end
end

local function open_lease(packed)
  local lease, at = {}, nil
  lease.token, lease.acquired_at, lease.renewed_at, lease.expires_at, lease.renewals, lease.ttl, lease.status,
    lease.asked_at, at = open(LEASE, packed)
  at = open_ask(lease, packed, at)
  lease.asked_by, lease.asked_reason = open(WHY, packed, at)
  return lease
end

local function close_lease(lease)
  return pack(LEASE, lease.token, lease.acquired_at, lease.renewed_at, lease.expires_at, lease.renewals, lease.ttl,
    lease.status, lease.asked_at) .. lease.who .. lease.said
    .. pack(WHY, #lease.asked_by, lease.asked_by, #lease.asked_reason, lease.asked_reason)
end

local function open_ticket(packed)
  local ticket, at = {}, nil
  ticket.since, ticket.expires_at, ticket.patience, ticket.ttl, ticket.priority, ticket.inbox, at =
    open(TICKET, packed)
  open_ask(ticket, packed, at)
  return ticket
end

local function close_ticket(ticket)
  return pack(TICKET, ticket.since, ticket.expires_at, ticket.patience, ticket.ttl, ticket.priority, #ticket.inbox,
    ticket.inbox) .. ticket.who .. ticket.said
end

-- Without unpacking the rest: behind five numbers, and the inbox.
local function id_of(packed)
  local at = 42 + string.byte(packed, 41)
  return string.sub(packed, at, at + 15)
end

local function close_row(list)
  local parts = {}
  for at, packed in ipairs(list) do
    parts[at] = pack(ROW, #packed, packed)
  end
  return table.concat(parts)
end

-- === The record ===

local MAX_HOLDERS, MAX_WAITERS = 1000, 1000
local MIN_TTL, MAX_TTL = 1000, 10 * 365 * 24 * 3600 * 1000000
local PRIORITY_STEP = 30 * 1000000
local GONE = 'its process is gone'

-- Leases are unpacked; tickets stay packed until somebody looks at them: a queue may be long.
local leases, tickets = {}, {}
for at = 1, lease_count do
  local packed
  packed, body = open(ROW, stored, body)
  leases[at] = open_lease(packed)
end
local listed = format == LISTED and call('LRANGE', queue, 0, -1) or {}
for at = 1, format == LISTED and #listed or ticket_count do
  if format == LISTED then
    tickets[at] = listed[at]
  else
    tickets[at], body = open(ROW, stored, body)
  end
end

local handed_over, changed = {}, false
-- The first lease that this step ended without a release, packed.
local took_over
local swept = { leases = 0, tickets = 0, served = 0 }
local old_wake_at = wake_at
-- Whether something may have ended, so that `wake_at` has to be found anew.
local due = stored and wake_at <= now

-- Something ends then: `wake_at` must not be later.
local function ends_at(time)
  if wake_at == 0 or time < wake_at then
    wake_at = time
  end
end

local function event(kind, of, told_token, after, renewals, until_, by, reason)
  changed = true
  last_event = call('XADD', events, 'MAXLEN', '~', max_events, '*', 'e',
    pack(EVENT, KINDS[kind], now, told_token, math.max(after, 0), renewals, until_, #last_event, last_event, #by, by,
      #reason, reason, #name, name) .. of.who)
end

local function tell(kind, lease, until_, by, reason)
  event(kind, lease, lease.token, now - lease.acquired_at, lease.renewals, until_, by, reason)
end

local function tell_ticket(kind, ticket, reason)
  event(kind, ticket, token, now - ticket.since, 0, 0, '', reason)
end

-- --- what a lock has room for, and the order of the queue (model/queue.rs)

local function admits(ask)
  local slots = ask.slots
  for _, lease in ipairs(leases) do
    if lease.mode ~= ask.mode then
      return false
    end
    if ask.mode == EXCLUSIVE then
      slots = math.min(slots, lease.slots)
    end
  end
  return #leases < (ask.mode == SHARED and MAX_HOLDERS or slots)
end

local function rank(priority, since)
  return since - PRIORITY_STEP * priority
end

-- Behind all that rank before it or like it. From the end, where most will stand.
local function place(ask)
  local mine, ahead = rank(ask.priority, now), #tickets
  while ahead > 0 do
    local ticket = open_ticket(tickets[ahead])
    if rank(ticket.priority, ticket.since) <= mine then
      break
    end
    ahead = ahead - 1
  end
  return ahead
end

-- --- what the operations share

local function mine(id)
  for _, lease in ipairs(leases) do
    if lease.id == id and lease.status ~= RELEASED then
      return lease
    end
  end
end

local function place_of(id)
  for at, packed in ipairs(tickets) do
    if id_of(packed) == id then
      return at
    end
  end
end

-- Token::next. A clock beyond 2^53 µs is broken; counting on is what keeps tokens in bounds.
local function next_token()
  local by_clock = now <= MAX_TOKEN and now or 0
  return math.min(math.max(token + 1, by_clock), MAX_TOKEN)
end

local function grant(ask, lasts, since)
  token = next_token()
  local lease = {
    token = token, acquired_at = now, renewed_at = now, expires_at = now + lasts, renewals = 0, ttl = ask.ttl,
    status = ACTIVE, asked_at = 0, id = ask.id, mode = ask.mode, slots = ask.slots, holder = ask.holder,
    boot = ask.boot, who = ask.who, said = ask.said, asked_by = '', asked_reason = '',
  }
  event('acquired', lease, token, now - since, 0, 0, '', '')
  leases[#leases + 1] = lease
  ends_at(lease.expires_at)
  return lease
end

local function all_leases()
  local packed = {}
  for at, lease in ipairs(leases) do
    packed[at] = close_lease(lease)
  end
  return packed
end

local function conflict(full)
  return #tickets, full and 1 or 0, all_leases()
end

local function queued(ahead)
  return { 'queued', now, handed_over, ahead, conflict(false) }
end

local function busy(full)
  return { 'busy', now, handed_over, conflict(full) }
end

local function not_held()
  return { 'not_held', now, handed_over, token, all_leases() }
end

local function with_lease(outcome, lease)
  return { outcome, now, handed_over, close_lease(lease) }
end

-- The answer that grants a lease. A lease that began in this step names the one in whose place it is.
local function granted(lease)
  local answer = with_lease('granted', lease)
  if took_over and lease.acquired_at == now then
    answer[5] = took_over
  end
  return answer
end

-- --- the past

local function end_leases(kind, by, reason, ends)
  local live, ended = {}, {}
  for _, lease in ipairs(leases) do
    local list = ends(lease) and ended or live
    list[#list + 1] = lease
  end
  leases = live
  for _, lease in ipairs(ended) do
    if not took_over and lease.status ~= RELEASED then
      took_over = close_lease(lease)
    end
    tell(kind, lease, 0, by, reason)
    swept.leases = swept.leases + 1
  end
end

local function end_tickets(reason, ends)
  local live, ended = {}, {}
  for _, packed in ipairs(tickets) do
    local ticket = open_ticket(packed)
    if ends(ticket) then
      ended[#ended + 1] = ticket
    else
      live[#live + 1] = packed
    end
  end
  tickets = live
  for _, ticket in ipairs(ended) do
    tell_ticket('left', ticket, reason)
    swept.tickets = swept.tickets + 1
  end
end

local function bury(is_dead)
  end_leases('expired', '', GONE, function(lease)
    return lease.status ~= RELEASED and is_dead(lease)
  end)
  end_tickets(GONE, is_dead)
end

local function steal(ask, after)
  while not mine(ask.id) and not admits(ask) do
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
    end_leases('stolen', ask.holder, '', function(lease)
      return lease.token == stalest.token
    end)
  end
end

local function start_clock_anew()
  local last_sign = 0
  for _, lease in ipairs(leases) do
    last_sign = math.max(last_sign, lease.renewed_at)
  end
  for at, packed in ipairs(tickets) do
    tickets[at] = open_ticket(packed)
    last_sign = math.max(last_sign, tickets[at].since)
  end
  local back = math.max(last_sign - now, 0)
  for _, lease in ipairs(leases) do
    local whole = math.max(lease.expires_at - lease.renewed_at, 0)
    if whole < MIN_TTL or whole > MAX_TTL then
      whole = lease.ttl
    end
    lease.acquired_at = math.max(lease.acquired_at - back, 0)
    lease.renewed_at = now
    lease.expires_at = now + whole
    changed = true
  end
  for at, ticket in ipairs(tickets) do
    ticket.since = math.max(ticket.since - back, 0)
    ticket.expires_at = now + ticket.patience
    tickets[at] = close_ticket(ticket)
    changed = true
  end
end

local function serve()
  while tickets[1] do
    local ticket = open_ticket(tickets[1])
    if not admits(ticket) then
      return
    end
    table.remove(tickets, 1)
    -- Not the whole ttl: if this waiter has died, those behind it wait no longer than its ticket lasts.
    local lease = grant(ticket, math.min(ticket.patience, ticket.ttl), ticket.since)
    local to, asking = ticket.inbox, ''
    if string.byte(to) == 35 then
      to, asking = string.sub(channel, 1, -34) .. string.sub(to, 2, 33) .. '}', string.sub(to, 34)
    end
    handed_over[#handed_over + 1] = { close_lease(lease), to, lease.id, asking }
    swept.served = swept.served + 1
  end
end

local function settle_the_past(ask, steal_after)
  if op == 'restarted' then
    due = true
    start_clock_anew()
    bury(function(of)
      return of.boot == ARGV[7]
    end)
  end
  if op == 'sweep' and ARGV[7] then
    local dead = {}
    for at = 7, #ARGV do
      dead[ARGV[at]] = true
    end
    bury(function(of)
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
    steal(ask, steal_after)
  end
  serve()
end

-- Ends one lease and serves the queue with its place.
local function remove(ended, kind, by, reason)
  for at = #leases, 1, -1 do
    if leases[at].token == ended.token then
      table.remove(leases, at)
    end
  end
  tell(kind, ended, 0, by, reason)
  serve()
end

-- --- the operations

local function first_asked(ask, queue)
  local ahead = place(ask)
  if ahead == 0 and admits(ask) then
    return granted(grant(ask, ask.ttl, now))
  end
  local full = #tickets >= MAX_WAITERS
  if queue and not full then
    ask.since, ask.expires_at, ask.patience, ask.inbox = now, now + queue, queue, inbox
    tell_ticket('queued', ask, '')
    table.insert(tickets, ahead + 1, close_ticket(ask))
    ends_at(ask.expires_at)
    return queued(ahead)
  end
  return busy(full)
end

local function acquire(ask, queue)
  local lease = mine(ask.id)
  if lease then
    lease.renewed_at = now
    lease.expires_at = now + lease.ttl
    ends_at(lease.expires_at)
    changed = true
    return granted(lease)
  end
  local at = place_of(ask.id)
  if at and queue then
    local ticket = open_ticket(tickets[at])
    ticket.patience = queue
    ticket.expires_at = now + queue
    ticket.inbox = inbox
    tickets[at] = close_ticket(ticket)
    ends_at(ticket.expires_at)
    changed = true
    return queued(at - 1)
  elseif at then
    end_tickets('', function(ticket)
      return ticket.id == ask.id
    end)
    serve()
    return busy(false)
  end
  return first_asked(ask, queue)
end

local function renew(id, own, ttl)
  local lease = mine(id)
  if not lease or lease.token ~= own then
    return not_held()
  end
  lease.ttl = ttl or lease.ttl
  lease.renewed_at = now
  lease.expires_at = now + lease.ttl
  lease.renewals = lease.renewals + 1
  ends_at(lease.expires_at)
  changed = true
  return with_lease('renewed', lease)
end

-- The holder is done, and yet the lock stays taken until `until_`, with nobody behind it.
local function keep(done, until_)
  tell('released', done, until_, '', '')
  done.renewed_at = now
  done.expires_at = until_
  done.status = RELEASED
  ends_at(until_)
  return done
end

local function release(id, own, at_least)
  local found
  for _, lease in ipairs(leases) do
    if lease.id == id and lease.token == own then
      found = lease
      break
    end
  end
  if not found then
    return not_held()
  end
  if found.status == RELEASED then
    return with_lease('released', found) -- Asked again because the first answer was lost.
  end
  if at_least and now < found.acquired_at + at_least then
    return with_lease('released', keep(found, found.acquired_at + at_least))
  end
  remove(found, 'released', '', '')
  return with_lease('released', found)
end

local function leave(id)
  if place_of(id) then
    end_tickets('', function(ticket)
      return ticket.id == id
    end)
  end
  local lease = mine(id)
  if lease then
    remove(lease, 'released', '', '')
  end
  serve()
  return { 'left', now, handed_over }
end

local function ask_release(meant, by, reason)
  local asked = {}
  for _, lease in ipairs(leases) do
    if (not meant or lease.token == meant) and lease.status ~= RELEASED then
      lease.status = RELEASING
      lease.asked_by, lease.asked_reason, lease.asked_at = by, reason, now
      asked[#asked + 1] = lease
    end
  end
  for _, lease in ipairs(asked) do
    tell('asked', lease, 0, by, reason)
  end
  if #asked == 0 then
    return not_held()
  end
  return { 'asked', now, handed_over, #asked }
end

local function force_release(own, by, reason)
  for _, lease in ipairs(leases) do
    if lease.token == own then
      -- Its holder may still be at work: from here on its token is old, also for `fence check`.
      token = next_token()
      remove(lease, 'forced', by, reason)
      return with_lease('forced', lease)
    end
  end
  return not_held()
end

-- === One operation ===

local reply
if op == 'acquire' then
  local ask = { ttl = tonumber(ARGV[9]), priority = tonumber(ARGV[10]) }
  open_ask(ask, ARGV[7] .. ARGV[8], 1)
  settle_the_past(ask, tonumber(ARGV[12]))
  reply = acquire(ask, tonumber(ARGV[11]))
else
  settle_the_past()
  if op == 'renew' then
    reply = renew(ARGV[7], tonumber(ARGV[8]), tonumber(ARGV[9]))
  elseif op == 'renew_logged' then
    reply = renew(ARGV[7], tonumber(ARGV[8]), tonumber(ARGV[9]))
    if reply[1] == 'renewed' then
      tell('renewed', mine(ARGV[7]), 0, '', '')
    end
  elseif op == 'release' then
    reply = release(ARGV[7], tonumber(ARGV[8]), tonumber(ARGV[9]))
  elseif op == 'leave' then
    reply = leave(ARGV[7])
  elseif op == 'ask_release' then
    reply = ask_release(tonumber(ARGV[7]), ARGV[8], ARGV[9])
  elseif op == 'force_release' then
    reply = force_release(tonumber(ARGV[7]), ARGV[8], ARGV[9])
  else
    reply = { 'swept', now, handed_over, swept.leases, swept.tickets, swept.served }
  end
end

-- === Save ===

-- What has changed of the list.
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
    ends_at(lease.expires_at)
  end
  for _, packed in ipairs(tickets) do
    ends_at(open_ticket(packed).expires_at)
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
    local last, ids = open_ticket(tickets[#tickets]), {}
    for at, packed in ipairs(tickets) do
      ids[at] = id_of(packed)
    end
    tail = pack('>d', rank(last.priority, last.since)) .. table.concat(ids)
  end
  save_queue()
  call('SET', record,
    pack(RECORD, tickets[1] and LISTED or INLINE, version, token, wake_at, #last_event, last_event, #leases, #tickets)
    .. close_row(all_leases()) .. tail)
end

-- A wake-up is a hint: one that may not be sent must not undo what is written.
if ARGV[6] == '1' then
  for _, served in ipairs(handed_over) do
    if served[2] ~= channel then
      local asking = served[4]
      redis.pcall('PUBLISH', served[2], served[3] .. (asking == '' and '' or asking .. served[1]))
    end
  end
end
return reply
