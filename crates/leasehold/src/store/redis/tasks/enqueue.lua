-- Enqueues tasks, all of them in one step. `add.lua` does the same for plain tasks.
-- ARGV: for each task its id, its arguments, the static end of its record, and its payload if that
--       is stored separately.

local ARGUMENTS = '>Bc8hI4BI4I8Bc0'
local NOW, AT = 0, 1
local REUSE_FAILED, REUSE_FINISHED = 1, 2
local NO_LIMIT = 4294967295
local queues, added, answers, earliest = {}, {}, {}, {}
local records, ids = batched('HSET', TASKS), batched('ZADD', base .. 'ids')

-- Implements the key rule of `NewTask::admit` (model/task/admission.rs). Checks whether the key is in
-- use. Returns the answer if the key rejects this task, else the task that loses the key. Only a
-- rejection compares the fingerprints.
local function check_key(queue, key, fingerprint, reuse)
  -- The earlier task may be part of this call.
  flush_batch()
  local earlier = call('HGET', base .. 'k:' .. queue, key)
  local task = earlier and load(earlier)
  if not task then
    return nil, nil
  end
  if (reuse == REUSE_FAILED and task.state == FAILED) or (reuse == REUSE_FINISHED and task.state >= SUCCEEDED) then
    return nil, task
  end
  return (task.fingerprint == fingerprint and 'd' or 'k') .. earlier
end

-- Returns the head of a lock in a queue, if the number of its blocked tasks has reached the limit:
-- the limit of `NewTask::admit`, without the head. A task without a record is no head: `elect` replaces it.
local function full_lock_head(lock, queue, limit)
  if lock == '' or limit == NO_LIMIT then
    return nil
  end
  local chain = chain_of(lock, queue)
  local head = call('HGET', HEADS, chain)
  if head and call('ZCARD', waiting_key(chain)) >= limit and (added[head] or call('HEXISTS', TASKS, head) == 1) then
    return head
  end
  return nil
end

-- Returns the head of a new task. Most tasks of one call have the same.
local heads = {}
local function head_of(state, external_payload, has_lock, attempts, runner_deadline)
  local variant = ((attempts * 8 + state) * 2 + external_payload) * 2 + has_lock
  local head = runner_deadline == 0 and heads[variant]
  if not head then
    head = encode(HEAD, FORMAT, state, 0, external_payload, 0, 0, 0, has_lock, 0, attempts, 0, 0, 0, 1, 0, 0, 0, 0,
      runner_deadline, NO_WORKER)
    if runner_deadline == 0 then
      heads[variant] = head
    end
  end
  return head
end

-- Returns the rank of a new task as the argument of a command.
local ranks = {}
local function rank_of(priority)
  local text = ranks[priority]
  if not text then
    text = string.format('%.0f', now - PRIORITY_STEP * priority)
    ranks[priority] = text
  end
  return text
end

local function add(id, arguments, static, payload)
  if added[id] or call('HEXISTS', TASKS, id) == 1 then
    return 'a'
  end
  local when, run_at, priority, attempts, reuse, limit, runner_deadline, key = decode(ARGUMENTS, arguments)
  local queue, lock, fingerprint = decode('>Bc0Bc0c8', static)
  local answer, earlier
  if key ~= '' then
    answer, earlier = check_key(queue, key, fingerprint, reuse)
    if answer then
      return answer
    end
  end
  local head = full_lock_head(lock, queue, limit)
  if head then
    return 'f' .. head
  end
  if earlier then
    earlier.keyless = 1
    save(earlier)
  end
  if key ~= '' then
    call('HSET', base .. 'k:' .. queue, key, id)
  end
  local due = now
  if when == NOW then
    run_at = encode('>I8', now)
  elseif when == AT then
    due = decode('>I8', run_at)
  else
    due = now + decode('>I8', run_at)
    run_at = encode('>I8', due)
  end
  local state, blocked = due > now and SCHEDULED or PENDING, false
  if lock ~= '' and state == PENDING and call('HSETNX', HEADS, chain_of(lock, queue), id) == 0 then
    state, blocked = BLOCKED, true
    call('ZADD', waiting_key(chain_of(lock, queue)), rank_of(priority), run_at .. id)
  elseif state == PENDING then
    append(batched('ZADD', base .. 'r:' .. queue), rank_of(priority), run_at .. id)
    newly_ready[queue] = (newly_ready[queue] or 0) + 1
  else
    append(batched('ZADD', base .. 's:' .. queue), due, run_at .. id)
    earliest[queue] = math.min(earliest[queue] or due, due)
  end
  count(queue, state, 1)
  if runner_deadline > 0 then
    runner_deadline = now + runner_deadline
    call('ZADD', DEADLINES, runner_deadline, id)
  end
  append(records, id, head_of(state, payload == '' and 0 or 1, lock == '' and 0 or 1, attempts, runner_deadline)
    .. encode(SCHEDULE, priority, run_at, now, now) .. static)
  append(ids, '0', id)
  if payload ~= '' then
    call('HSET', base .. 'payload', id, payload)
  end
  if not queues[queue] then
    queues[queue] = true
    call('SADD', base .. 'queues', queue)
  end
  added[id] = true
  if blocked then
    -- This task may rank before a head that is not running yet, and the head may be part of this
    -- call.
    flush_batch()
    elect(lock, queue)
  end
  return 'a'
end

for at = 4, #ARGV, 4 do
  local key = select(8, decode(ARGUMENTS, ARGV[at + 1]))
  local earlier = key ~= '' and call('HGET', base .. 'k:' .. decode('>Bc0', ARGV[at + 2]), key)
  if earlier then
    load(earlier)
  end
end
for at = 4, #ARGV, 4 do
  answers[#answers + 1] = add(ARGV[at], ARGV[at + 1], ARGV[at + 2], ARGV[at + 3])
end
for queue, due in pairs(earliest) do
  index_earliest(DUE, queue, due)
end
return { flush_and_notify(), answers }
