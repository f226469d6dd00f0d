-- What all scripts about tasks begin with: the record of a task, and the lists that it is in. It does what `file`,
-- `unfile`, `elect` and `promote` of model/task/table.rs do, with the same names.
--
-- KEYS: the hash of all tasks; the other keys have the same beginning, and so the same place in a Cluster.
-- ARGV: the time (empty: the server's own), the bell of the calling store, the command to ring other bells with, then
--       what the script needs.
--
-- A record is format, state, whether it is archived, whether its payload is kept apart, whether it has lost its key,
-- whether it was ever changed; then BASE; if it was changed, CHANGED; then NAMES; and if there is anything to say, SAID.
-- A task with a lock or with a runner that waits for it has format 3: as format 2, and the deadline of its runner (0: none) as
-- the last 8 bytes. An earlier version, which had one head for all queues of a lock, does not read it.
-- Numbers that are computed here stay below 2^53. `run_at` may be any time, so it stays packed. Binary texts are never
-- compared with `<`: Lua would ask the server's locale. An error in the middle of a script would leave half of its step, so
-- whatever may turn out to be unreadable is read before anything is written.

local pack, open, call = struct.pack, struct.unpack, redis.call
local BASE, CHANGED = '>BBBBBBhI4c8I8I8', '>I4I8I8I8I8I8I8BI4Bc0'
-- As format 1 has it: not whether the task has begun, nor how many of its leases ran out.
local CHANGED_1 = '>I4I8I8I8I8I8I8Bc0'
local FORMAT, WITH_DEADLINE = 2, 3
local NAMES, SAID = '>Bc0Bc0c8I4c0', '>I4c0I4c0I4c0I4c0I4c0'
local SCHEDULED, BLOCKED, PENDING, RUNNING, SUCCEEDED, FAILED = 0, 1, 2, 3, 4, 5
local STEP, MAX_TOKEN, PROMOTE = 30000000, 9007199254740991, 1000

local TASKS, own, publish = KEYS[1], ARGV[2], ARGV[3]
local base = string.sub(TASKS, 1, -6)
local RUNS, HEADS = base .. 'running', base .. 'chains'
-- Queues that have something scheduled or finished, by its earliest time or one before that: what is done for all queues costs
-- nothing for the others.
local DUE, OVER = base .. 'due', base .. 'over'
local now = tonumber(ARGV[1])
if not now then
  local time = call('TIME')
  now = time[1] * 1000000 + time[2]
end

-- === The record ===

-- The record without the deadline of its runner, and that.
local function open_format(record)
  local format = string.byte(record)
  if format == 1 or format == FORMAT then
    return record, 0
  elseif format == WITH_DEADLINE then
    return string.sub(record, 1, -9), (open('>I8', record, #record - 7))
  end
  error('LEASEHOLD a task of format ' .. tostring(format))
end

local function close_format(lock, wanted)
  if lock == '' and wanted == 0 then
    return FORMAT, ''
  end
  return WITH_DEADLINE, pack('>I8', wanted)
end

local function open_task(id, record)
  local task, format, changed, at = { id = id }, nil, nil, nil
  record, task.wanted = open_format(record)
  format, task.state, task.archived, task.apart, task.keyless, changed, task.priority, task.attempts, task.run_at,
    task.ready_at, task.created_at, at = open(BASE, record)
  if changed == 1 and format == 1 then
    task.attempt, task.token, task.version, task.updated_at, task.leased_at, task.lease_end, task.finished_at,
      task.worker, at = open(CHANGED_1, record, at)
    -- It was leased when each lease counted as an attempt.
    task.begun, task.expiries = task.state == RUNNING and 1 or 0, 0
  elseif changed == 1 then
    task.attempt, task.token, task.version, task.updated_at, task.leased_at, task.lease_end, task.finished_at,
      task.begun, task.expiries, task.worker, at = open(CHANGED, record, at)
  else
    task.attempt, task.token, task.version, task.updated_at, task.leased_at, task.lease_end, task.finished_at,
      task.begun, task.expiries, task.worker = 0, 0, 1, task.created_at, 0, 0, 0, 0, 0, ''
  end
  task.names_at = at
  task.queue, task.lock, task.fingerprint, task.rest, task.said_at = open(NAMES, record, at)
  task.record = record
  return task
end

local function close_said(task)
  local said = task.said
  for _, text in ipairs(said) do
    if text ~= '' then
      return pack(SAID, #said[1], said[1], #said[2], said[2], #said[3], said[3], #said[4], said[4], #said[5], said[5])
    end
  end
  return ''
end

-- What was said about a task that nobody has read out of it stays as it is.
local function close_task(task)
  local format, ending = close_format(task.lock, task.wanted)
  local head = pack(BASE, format, task.state, task.archived, task.apart, task.keyless, task.version > 1 and 1 or 0,
    task.priority, task.attempts, task.run_at, task.ready_at, task.created_at)
  if task.version > 1 then
    head = head .. pack(CHANGED, task.attempt, task.token, task.version, task.updated_at, task.leased_at,
      task.lease_end, task.finished_at, task.begun, task.expiries, #task.worker, task.worker)
  end
  if not task.said then
    return head .. string.sub(task.record, task.names_at) .. ending
  end
  return head .. string.sub(task.record, task.names_at, task.said_at - 1) .. close_said(task) .. ending
end

-- Progress, result, error, who wants it stopped, events.
local PROGRESS, RESULT, ERROR, CANCEL = 1, 2, 3, 4
local function said(task)
  if not task.said then
    if task.said_at > #task.record then
      task.said = { '', '', '', '', '' }
    else
      task.said = { open(SAID, task.record, task.said_at) }
      task.said[6] = nil
    end
  end
  return task.said
end

local function load(id)
  local record = call('HGET', TASKS, id)
  return record and open_task(id, record)
end

-- One that a later version has written stays where it is.
local function load_readable(id)
  local is_readable, task = pcall(load, id)
  return is_readable and task
end

local function save(task)
  call('HSET', TASKS, task.id, close_task(task))
end

-- === The lists ===

local counts, woken = {}, {}

local function count(queue, state, by)
  local of = counts[queue]
  if not of then
    of = {}
    counts[queue] = of
  end
  of[state] = (of[state] or 0) + by
end

local function takes_lock(task)
  return task.lock ~= '' and (task.state == PENDING or task.state == RUNNING)
end

local function rank(task)
  return task.ready_at - STEP * task.priority
end

-- The tasks of one queue with one lock: its head is in HEADS, those that wait for it are in a list.
local function chain_of(lock, queue)
  return #lock .. ':' .. lock .. ':' .. queue
end

local function waiting_key(chain)
  return base .. 'c:' .. chain
end

-- When recovery has to look at a task: the end of its lease, or of its runner's deadline. 0: never.
local function deadline(task)
  if task.state == RUNNING then
    return task.lease_end
  end
  return task.state < RUNNING and task.wanted or 0
end

-- Where finished tasks of a queue are, by the time they ended.
local function finished_key(archived, state, queue)
  return base .. (archived == 1 and 'a' or 'f') .. state .. ':' .. queue
end

-- Notes the earliest time in a queue.
local function note(list, queue, time)
  call('ZADD', list, 'LT', time, queue)
end

local over_noted = {}
local function note_over(queue, finished_at)
  if (over_noted[queue] or math.huge) > finished_at then
    over_noted[queue] = finished_at
    note(OVER, queue, finished_at)
  end
end

-- The queue's earliest time is read anew; without any, the queue is not in the list.
local function renote(list, queue, keys)
  local earliest
  for _, key in ipairs(keys) do
    local first = call('ZRANGE', key, 0, 0, 'WITHSCORES')[2]
    if first and (not earliest or tonumber(first) < tonumber(earliest)) then
      earliest = first
    end
  end
  if earliest then
    call('ZADD', list, earliest, queue)
  else
    call('ZREM', list, queue)
  end
end

local function renote_due(queue)
  renote(DUE, queue, { base .. 's:' .. queue })
end

local function renote_over(queue)
  local keys = {}
  for state = SUCCEEDED, 6 do
    keys[#keys + 1] = finished_key(0, state, queue)
    keys[#keys + 1] = finished_key(1, state, queue)
  end
  renote(OVER, queue, keys)
end

-- Queues of a store from before these lists are put in them once.
local function note_all()
  if call('HSETNX', base .. 'noted', 'queues', 1) == 1 then
    for _, queue in ipairs(call('SMEMBERS', base .. 'queues')) do
      renote_due(queue)
      renote_over(queue)
    end
  end
end

local function unfile(task)
  local state, queue, id = task.state, task.queue, task.id
  if takes_lock(task) then
    call('HDEL', HEADS, chain_of(task.lock, queue))
  end
  if deadline(task) > 0 then
    call('ZREM', RUNS, id)
  end
  if state == SCHEDULED then
    call('ZREM', base .. 's:' .. queue, task.run_at .. id)
  elseif state == PENDING then
    call('ZREM', base .. 'r:' .. queue, task.run_at .. id)
  elseif state == BLOCKED then
    call('ZREM', waiting_key(chain_of(task.lock, queue)), task.run_at .. id)
  elseif state ~= RUNNING then
    call('ZREM', finished_key(task.archived, state, queue), id)
  end
  if task.archived == 0 then
    count(queue, state, -1)
  end
end

-- If it could run but its chain has a head, it waits for that.
local function file(task)
  local queue, id = task.queue, task.id
  if takes_lock(task) and call('HSETNX', HEADS, chain_of(task.lock, queue), id) == 0 and task.state == PENDING then
    task.state = BLOCKED
  end
  local state, ends = task.state, deadline(task)
  if ends > 0 then
    call('ZADD', RUNS, ends, id)
  end
  if state == SCHEDULED then
    call('ZADD', base .. 's:' .. queue, open('>I8', task.run_at), task.run_at .. id)
    note(DUE, queue, open('>I8', task.run_at))
  elseif state == PENDING then
    call('ZADD', base .. 'r:' .. queue, rank(task), task.run_at .. id)
    woken[queue] = (woken[queue] or 0) + 1
  elseif state == BLOCKED then
    call('ZADD', waiting_key(chain_of(task.lock, queue)), rank(task), task.run_at .. id)
  elseif state ~= RUNNING then
    call('ZADD', finished_key(task.archived, state, queue), task.finished_at, id)
    note_over(queue, task.finished_at)
  end
  if task.archived == 0 then
    count(queue, state, 1)
  end
end

-- Whether one packed text of the same length comes before another.
local function is_before(one, other)
  for at = 1, #one do
    local a, b = string.byte(one, at), string.byte(other, at)
    if a ~= b then
      return a < b
    end
  end
  return false
end

local function put(task, state)
  unfile(task)
  task.state = state
  file(task)
  save(task)
end

-- Sees to it that a chain has a head, and that no task which waits comes before a head that does not run yet.
local function elect(lock, queue)
  local chain = chain_of(lock, queue)
  local first = call('ZRANGE', waiting_key(chain), 0, 0, 'WITHSCORES')
  local task = first[1] and load_readable(string.sub(first[1], 9))
  if not task then
    return
  end
  local id = call('HGET', HEADS, chain)
  local head = id and load(id)
  if head then
    local before = tonumber(first[2])
    local swaps = head.state == PENDING
      and (before < rank(head) or (before == rank(head) and is_before(first[1], head.run_at .. id)))
    if not swaps then
      return
    end
    call('HDEL', HEADS, chain)
    unfile(head)
    head.state = BLOCKED
    file(head)
    save(head)
  end
  put(task, PENDING)
end

local function make_ready(task)
  unfile(task)
  task.state, task.ready_at = PENDING, now
  file(task)
  save(task)
  if task.lock ~= '' then
    elect(task.lock, task.queue)
  end
end

-- Puts in line what is due in these queues; says how many.
local function promote(queues)
  local due = {}
  for _, queue in ipairs(queues) do
    for _, member in ipairs(call('ZRANGEBYSCORE', base .. 's:' .. queue, '-inf', now, 'LIMIT', 0, PROMOTE)) do
      due[#due + 1] = member
    end
  end
  if #queues > 1 then
    table.sort(due, is_before)
  end
  local promoted = math.min(#due, PROMOTE)
  for at = 1, promoted do
    local task = load_readable(string.sub(due[at], 9))
    if task then
      make_ready(task)
    end
  end
  return promoted
end

-- === Many at once ===

-- One command for many tasks costs the server, its log and its replicas less than many commands. So records and entries
-- of lists are gathered; whoever needs to see them writes them first.
local batch = {}

-- The command that gathers members for this key.
local function many(command, key)
  local name = command .. key
  local of = batch[name]
  if not of then
    of = { command, key }
    batch[name] = of
  end
  return of
end

local function write(of)
  if #of > 2 then
    call(unpack(of))
    for at = #of, 3, -1 do
      of[at] = nil
    end
  end
end

local function gather(of, one, other)
  local length = #of
  of[length + 1] = one
  of[length + 2] = other
  if length > 1000 then
    write(of)
  end
end

local function write_batch()
  for _, of in pairs(batch) do
    write(of)
  end
end

-- === At the end ===

local function write_counts()
  for queue, of in pairs(counts) do
    for state, by in pairs(of) do
      if by ~= 0 then
        call('HINCRBY', base .. 'q:' .. queue, state, by)
      end
    end
  end
  counts = {}
end

-- Wakes stores whose workers wait for tasks of this queue, the longest waiting first, one for each task. Whoever does
-- not hear it is not there any more, and the next one is asked. Says how many tasks are left for the caller's own.
local function ring(queue, tasks)
  local served, waiting = 0, base .. 'w:' .. queue
  for _ = 1, 100 do
    if served >= tasks then
      break
    end
    local bell = call('ZPOPMIN', waiting)[1]
    if not bell then
      break
    end
    if bell ~= own then
      -- Not every user may publish, and an old Cluster cannot: then workers poll.
      local heard = redis.pcall(publish, bell, pack('>I4c0', tasks, queue))
      if type(heard) == 'number' and heard > 0 then
        served = served + 1
      end
    end
  end
  return tasks - served
end

-- The caller rings for its own workers: a queue, and how many tasks.
local function bells()
  write_batch()
  write_counts()
  local left = {}
  for queue, tasks in pairs(woken) do
    left[#left + 1] = queue
    left[#left + 1] = ring(queue, tasks)
  end
  return left
end

-- === From an earlier version ===

-- An earlier version had one head for all queues of a lock: each queue gets its own.
local function split_heads(heads)
  for at = 1, #heads, 2 do
    local waiting, chains = base .. 'b:' .. heads[at], {}
    local head = load(heads[at + 1])
    if head and takes_lock(head) then
      call('HSETNX', HEADS, chain_of(head.lock, head.queue), head.id)
      save(head)
    end
    for _, member in ipairs(call('ZRANGE', waiting, 0, -1)) do
      local task = load(string.sub(member, 9))
      if task and task.state == BLOCKED then
        call('ZADD', waiting_key(chain_of(task.lock, task.queue)), rank(task), member)
        save(task)
        chains[task.queue] = task.lock
      end
    end
    for queue, lock in pairs(chains) do
      elect(lock, queue)
    end
    call('DEL', waiting)
    call('HDEL', base .. 'heads', heads[at])
  end
  -- Not every script writes counts.
  write_counts()
end
local old_heads = call('HGETALL', base .. 'heads')
if #old_heads > 0 then
  split_heads(old_heads)
end
