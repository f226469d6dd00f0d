-- Leases the next tasks to a worker.
-- ARGV: worker, TTL of each lease, maximum number of tasks, whether workers of this store wait
--       ('1'), number of tasks that the worker starts immediately, whether it has no other task
--       ('1'), number of tasks already leased in this call, whether expired leases must be ended
--       first ('1'), maximum number of payload bytes, whether tasks with a lock start later ('1'),
--       queues.

local worker, ttl, max = ARGV[4], tonumber(ARGV[5]), tonumber(ARGV[6])
local start_limit, idle, leased_count = tonumber(ARGV[8]), ARGV[9], tonumber(ARGV[10])
local full, bytes, waits_for_locks = tonumber(ARGV[12]), 0, ARGV[13]
local QUEUES_AT = 14
if ARGV[11] == '1' and #call('ZRANGEBYSCORE', DEADLINES, '-inf', now, 'LIMIT', 0, 1) > 0 then
  -- The caller ends them by the slow path and then repeats the call.
  return { {}, now, '', {}, 2 }
end
local queues = {}
for at = QUEUES_AT, #ARGV do
  if call('HEXISTS', base .. 'q:' .. ARGV[at], 'pause') == 0 then
    queues[#queues + 1] = ARGV[at]
  end
end
promote(queues)
write_counts()

-- Returns the next tasks of all these queues in one common order: the members of the ready sets, and
-- the queue of each. The caller has at most CHUNK of them in one script, so one command writes all.
local function next_tasks()
  if max == 0 then
    return {} -- To the commands below, the index -1 is the last task of a queue.
  end
  if #queues == 1 then
    return call('ZRANGE', base .. 'r:' .. queues[1], 0, max - 1)
  end
  local found, members, queue_of = {}, {}, {}
  for _, queue in ipairs(queues) do
    local ranked = call('ZRANGE', base .. 'r:' .. queue, 0, max - 1, 'WITHSCORES')
    for at = 1, #ranked, 2 do
      found[#found + 1] = { member = ranked[at], rank = tonumber(ranked[at + 1]), queue = queue }
    end
  end
  table.sort(found, function(one, other)
    if one.rank ~= other.rank then
      return one.rank < other.rank
    end
    return is_before(one.member, other.member)
  end)
  for at = 1, math.min(max, #found) do
    members[at], queue_of[at] = found[at].member, found[at].queue
  end
  return members, queue_of
end

local members, queue_of, ids, records
local function read_next_tasks()
  members, queue_of = next_tasks()
  ids = {}
  for at = 1, #members do
    ids[at] = string.sub(members[at], 9)
  end
  records = #ids > 0 and call('HMGET', TASKS, unpack(ids)) or {}
end

read_next_tasks()
for at = 1, #ids do
  if not records[at] then
    -- The server has lost records, perhaps very many: they must not hide the tasks behind them.
    for _, queue in ipairs(queues) do
      remove_lost(base .. 'r:' .. queue, queue, PENDING)
    end
    read_next_tasks()
    break
  end
end
local leased, lost, more = {}, {}, 0
local expires_at, written, deadlines = now + ttl, {}, {}
local expires_text, removals, leased_of = string.format('%.0f', expires_at), {}, {}

-- Implements `runs_alone`, `may_be_prefetched` and `includes_next` of model/task/rules.rs. Returns nil
-- if the reply ends before the task, else whether the task counts as begun and whether it runs
-- alone.
local function check_leasable(token, attempt, attempts, expiries, has_lock)
  local starts_later = waits_for_locks == '1' and has_lock == 1
  if expiries >= 2 or (expiries > 0 and attempt + 1 >= attempts) then
    if leased_count > 0 then
      return nil
    end
    return idle == '1' and not starts_later and 1 or 0, true
  end
  if leased_count < start_limit then
    return starts_later and 0 or 1, false
  end
  if token == 0 and attempts > 1 then
    return 0, false
  end
  return nil
end

-- Returns what a lease of any task with this head needs: numbers for `check_leasable`, and the heads of
-- the leased task, not begun and begun. `false` if the whole record must be decoded.
local plans = {}
local function make_plan(head)
  local _, _, archived, external_payload, keyless, _, has_extras, has_lock, _, attempts, attempt, expiries, token,
    version, _, _, _, _, runner_deadline = decode(HEAD, head)
  if has_extras == 1 then
    return false
  end
  local plan = {
    token = token, attempt = attempt, attempts = attempts, expiries = expiries, has_lock = has_lock,
    external_payload = external_payload,
  }
  local next_token = math.min(math.max(token + 1, now), MAX_TOKEN)
  for begun = 0, 1 do
    plan[begun] = encode(HEAD, FORMAT, RUNNING, archived, external_payload, keyless, begun, 0, has_lock, 1, attempts,
      attempt + 1, expiries, next_token, version + 1, now, now, expires_at, 0, runner_deadline, worker)
  end
  return plan
end

-- Returns the record of a leased task that has no plan.
local function lease_decoded(task, begun)
  extras(task)[PROGRESS] = ''
  task.state, task.begun, task.has_worker, task.worker = RUNNING, begun, 1, worker
  task.attempt, task.version = task.attempt + 1, task.version + 1
  task.token = math.min(math.max(task.token + 1, now), MAX_TOKEN)
  task.updated_at, task.leased_at, task.lease_expires_at, task.finished_at = now, now, expires_at, 0
  return encode_task(task)
end

local alone, leases, queue = false, 0, queues[1]
for at = 1, #ids do
  if alone then
    more = 1
    break
  end
  if bytes >= full then
    break
  end
  local id, record = ids[at], records[at]
  if queue_of then
    queue = queue_of[at]
  end
  local removed = removals[queue]
  if not removed then
    removed = { 'ZREM', base .. 'r:' .. queue }
    removals[queue] = removed
  end
  if record then
    local plan, task = false, nil
    if check_format(record) == FORMAT then
      local head = string.sub(record, 1, HEAD_SIZE)
      plan = plans[head]
      if plan == nil then
        plan = make_plan(head)
        plans[head] = plan
      end
    end
    if not plan then
      task = decode_task(id, record)
    end
    local numbers, begun, payload = plan or task, nil, ''
    local has_lock = plan and plan.has_lock or task.lock ~= '' and 1 or 0
    begun, alone = check_leasable(numbers.token, numbers.attempt, numbers.attempts, numbers.expiries, has_lock)
    if not begun then
      more = 1
      break
    end
    if plan then
      record = plan[begun] .. string.sub(record, HEAD_SIZE + 1)
    else
      record = lease_decoded(task, begun)
    end
    if numbers.external_payload == 1 then
      -- Payloads that are not stored separately are too short to fill the reply of one script.
      payload = call('HGET', base .. 'payload', id) or ''
      bytes = bytes + #payload
    end
    leased_count, leases = leased_count + 1, leases + 1
    written[2 * leases + 1], written[2 * leases + 2] = id, record
    deadlines[2 * leases + 1], deadlines[2 * leases + 2] = expires_text, id
    leased[3 * leases - 2], leased[3 * leases - 1], leased[3 * leases] = id, record, payload
    leased_of[queue] = (leased_of[queue] or 0) + 1
  else
    count(queue, PENDING, -1) -- The server has lost the record.
    lost[#lost + 1] = id
  end
  removed[#removed + 1] = members[at]
end
if leases > 0 then
  written[1], written[2], deadlines[1], deadlines[2] = 'HSET', TASKS, 'ZADD', DEADLINES
  call(unpack(written))
  call(unpack(deadlines))
end
for _, removed in pairs(removals) do
  if #removed > 2 then
    call(unpack(removed))
  end
end
remove_remains(lost)
for queue, tasks in pairs(leased_of) do
  count(queue, PENDING, -tasks)
  count(queue, RUNNING, tasks)
  if newly_ready[queue] then
    newly_ready[queue] = newly_ready[queue] - tasks
  end
end

local next_due = ''
if #leased < 3 * max and bytes < full then
  for _, queue in ipairs(queues) do
    local first = call('ZRANGE', base .. 's:' .. queue, 0, 0)[1]
    if first and (next_due == '' or is_before(string.sub(first, 1, 8), next_due)) then
      next_due = string.sub(first, 1, 8)
    end
  end
end
-- Promoted tasks that were not leased go to other waiting stores, before this store registers as
-- one of them.
for queue, tasks in pairs(newly_ready) do
  newly_ready[queue] = tasks > 0 and tasks or nil
end
local own_share = flush_and_notify()
if ARGV[7] == '1' then
  for at = QUEUES_AT, #ARGV do
    call('ZADD', base .. 'w:' .. ARGV[at], 'NX', now, own_channel)
  end
end
return { own_share, now, next_due, leased, more }
