-- Leases the next tasks to a worker.
-- ARGV: worker, TTL of each lease, maximum number of tasks, whether workers of this store wait
--       ('1'), number of tasks that the worker starts immediately, whether it has no other task
--       ('1'), number of tasks already leased in this call, whether expired leases must be ended
--       first ('1'), maximum number of payload bytes, queues.

local worker, ttl, max = ARGV[4], tonumber(ARGV[5]), tonumber(ARGV[6])
local start_limit, idle, leased_count = tonumber(ARGV[8]), ARGV[9], tonumber(ARGV[10])
local full, bytes = tonumber(ARGV[12]), 0
local QUEUES_AT = 13
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

-- Returns the next tasks of all these queues in one common order.
local function next_tasks()
  local found = {}
  for _, queue in ipairs(queues) do
    local ready = base .. 'r:' .. queue
    local removals = batched('ZREM', ready)
    if #queues == 1 then
      for at, member in ipairs(call('ZRANGE', ready, 0, max - 1)) do
        found[at] = { member = member, removals = removals }
      end
      return found
    end
    local members = call('ZRANGE', ready, 0, max - 1, 'WITHSCORES')
    for at = 1, #members, 2 do
      found[#found + 1] = { member = members[at], rank = tonumber(members[at + 1]), removals = removals }
    end
  end
  table.sort(found, function(one, other)
    if one.rank ~= other.rank then
      return one.rank < other.rank
    end
    return is_before(one.member, other.member)
  end)
  return found
end

local ids, members, leased, more = {}, {}, {}, 0
for at, task in ipairs(next_tasks()) do
  if at > max then
    break
  end
  ids[at], members[at] = string.sub(task.member, 9), task
end
local records = #ids > 0 and call('HMGET', TASKS, unpack(ids)) or {}
local expires_at, written, deadlines = now + ttl, batched('HSET', TASKS), batched('ZADD', DEADLINES)

-- Implements `runs_alone`, `may_be_fetched_ahead` and `gives` of model/task/begin.rs. Returns nil
-- if the reply ends before the task, else whether the task counts as begun and whether it runs
-- alone.
local function check_leasable(token, attempt, attempts, expiries)
  if expiries >= 2 or (expiries > 0 and attempt + 1 >= attempts) then
    if leased_count > 0 then
      return nil
    end
    return idle == '1' and 1 or 0, true
  end
  if leased_count < start_limit then
    return 1, false
  end
  if token == 0 and attempts > 1 then
    return 0, false
  end
  return nil
end

-- Leases one task. Does the same as `decode_task` and `encode_task` without a table for each task,
-- because this is the most frequent operation. Returns whether the task was leased, and whether it
-- runs alone.
local function lease(id, record, removals, member)
  check_format(record)
  local _, _, archived, external_payload, keyless, changed, priority, attempts, run_at, ready_at, created_at,
    runner_deadline, static_at = decode(BASE, record)
  local attempt, token, version, expiries, rest = 0, 0, 1, 0, nil
  local task = changed == 1 and decode_task(id, record)
  if task then
    attempt, token, version, expiries = task.attempt, task.token, task.version, task.expiries
  end
  local begun, alone = check_leasable(token, attempt, attempts, expiries)
  if not begun then
    return false, false
  end
  leased_count = leased_count + 1
  append(removals, member)
  if task then
    extras(task)[PROGRESS] = ''
    rest = string.sub(record, task.static_at, task.extras_at - 1) .. encode_extras(task)
  else
    rest = string.sub(record, static_at)
  end
  local queue = decode('>Bc0', rest)
  count(queue, PENDING, -1)
  count(queue, RUNNING, 1)
  if newly_ready[queue] then
    newly_ready[queue] = newly_ready[queue] - 1
  end
  token = math.min(math.max(token + 1, now), MAX_TOKEN)
  record = encode(BASE, FORMAT, RUNNING, archived, external_payload, keyless, 1, priority, attempts, run_at,
      ready_at, created_at, runner_deadline)
    .. encode(CHANGED, attempt + 1, token, version + 1, now, now, expires_at, 0, begun, expiries, #worker,
      worker) .. rest
  append(written, id, record)
  append(deadlines, expires_at, id)
  local payload = external_payload == 1 and call('HGET', base .. 'payload', id) or ''
  -- Payloads that are not stored separately are too short to fill the reply of one script.
  bytes = bytes + #payload
  leased[#leased + 1] = id
  leased[#leased + 1] = record
  leased[#leased + 1] = payload
  return true, alone
end

local alone = false
for at, id in ipairs(ids) do
  if alone then
    more = 1
    break
  end
  if bytes >= full then
    break
  end
  local task = members[at]
  if records[at] then
    local is_leased
    is_leased, alone = lease(id, records[at], task.removals, task.member)
    if not is_leased then
      more = 1
      break
    end
  else
    append(task.removals, task.member)
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
