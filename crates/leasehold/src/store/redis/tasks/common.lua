-- Second part of the task scripts that read records: the record of a task, and the indexes that it is
-- in. Adding to and removing from the indexes, `elect` and `promote` follow model/task/table.rs.

local STATIC, EXTRAS = '>Bc0Bc0c8I4c0', '>I4c0I4c0I4c0I4c0I4c0'
-- Parts of a record of format 1, before STATIC: CHANGED only if the task was ever changed. Records of
-- format 1 are read; every change writes format 2.
local OLD_FORMAT, OLD_BASE, OLD_CHANGED = 1, '>BBBBBBhI4c8I8I8I8', '>I4I8I8I8I8I8I8BI4Bc0'

local DEADLINES, HEADS = base .. 'running', base .. 'chains'
-- Queues with scheduled or finished tasks, by their earliest time or a time before it: work for all
-- queues costs nothing for the other queues.
local DUE, FINISHED = base .. 'due', base .. 'over'
-- Chains without a valid head, by the time at which a script gave up the search for one: `recover.lua` repeats it.
local UNELECTED = base .. 'unelected'

-- === The record ===

local function check_format(record)
  local format = string.byte(record)
  if format ~= FORMAT and format ~= OLD_FORMAT then
    error('LEASEHOLD a task of format ' .. tostring(format))
  end
  return format
end

local function decode_old_task(id, record)
  local task, changed, at, _ = { id = id }, nil, nil, nil
  _, task.state, task.archived, task.external_payload, task.keyless, changed, task.priority, task.attempts,
    task.run_at, task.ready_at, task.created_at, task.runner_deadline, at = decode(OLD_BASE, record)
  if changed == 1 then
    task.attempt, task.token, task.version, task.updated_at, task.leased_at, task.lease_expires_at, task.finished_at,
      task.begun, task.expiries, task.worker, at = decode(OLD_CHANGED, record, at)
  else
    task.attempt, task.token, task.version, task.updated_at, task.leased_at, task.lease_expires_at, task.finished_at,
      task.begun, task.expiries, task.worker = 0, 0, 1, 0, 0, 0, 0, 0, 0, ''
  end
  task.has_worker = task.worker == '' and 0 or 1
  if task.worker == '' then
    task.worker = NO_WORKER
  end
  task.static_at = at
  return task
end

local function decode_task(id, record)
  local task, _
  if check_format(record) == OLD_FORMAT then
    task = decode_old_task(id, record)
  else
    task = { id = id }
    _, task.state, task.archived, task.external_payload, task.keyless, task.begun, _, _, task.has_worker,
      task.attempts, task.attempt, task.expiries, task.token, task.version, task.updated_at, task.leased_at,
      task.lease_expires_at, task.finished_at, task.runner_deadline, task.worker = decode(HEAD, record)
    task.priority, task.run_at, task.ready_at, task.created_at, task.static_at =
      decode(SCHEDULE, record, HEAD_SIZE + 1)
  end
  task.queue, task.lock, task.fingerprint, task.rest, task.extras_at = decode(STATIC, record, task.static_at)
  task.record = record
  return task
end

local function encode_extras(task)
  local extras = task.extras
  for _, text in ipairs(extras) do
    if text ~= '' then
      return encode(EXTRAS, #extras[1], extras[1], #extras[2], extras[2], #extras[3], extras[3], #extras[4],
        extras[4], #extras[5], extras[5])
    end
  end
  return ''
end

-- Extras that were not decoded are copied unchanged.
local function encode_task(task)
  local extras
  if task.extras then
    extras = encode_extras(task)
  else
    extras = string.sub(task.record, task.extras_at)
  end
  return encode(HEAD, FORMAT, task.state, task.archived, task.external_payload, task.keyless, task.begun,
      extras == '' and 0 or 1, task.lock == '' and 0 or 1, task.has_worker, task.attempts, task.attempt, task.expiries,
      task.token, task.version, task.updated_at, task.leased_at, task.lease_expires_at, task.finished_at,
      task.runner_deadline, task.worker)
    .. encode(SCHEDULE, task.priority, task.run_at, task.ready_at, task.created_at)
    .. string.sub(task.record, task.static_at, task.extras_at - 1) .. extras
end

-- Indexes of the extras; the fifth are the events.
local PROGRESS, RESULT, ERROR, CANCEL = 1, 2, 3, 4
local function extras(task)
  if not task.extras then
    if task.extras_at > #task.record then
      task.extras = { '', '', '', '', '' }
    else
      task.extras = { decode(EXTRAS, task.record, task.extras_at) }
      task.extras[6] = nil
    end
  end
  return task.extras
end

local function load(id)
  local record = call('HGET', TASKS, id)
  return record and decode_task(id, record)
end

-- Returns nothing for a task that a later version has written: it stays where it is. Also returns
-- whether the server has lost the record, by an eviction for example: the caller removes the id from the
-- index in which it has found it, and calls `remove_remains`.
local function load_readable(id)
  local is_readable, task = pcall(load, id)
  return is_readable and task, is_readable and not task
end

local function save(task)
  call('HSET', TASKS, task.id, encode_task(task))
end

-- === Indexes ===

local counts, newly_ready = {}, {}

local function count(queue, state, by)
  local by_state = counts[queue]
  if not by_state then
    by_state = {}
    counts[queue] = by_state
  end
  by_state[state] = (by_state[state] or 0) + by
end

local function takes_lock(task)
  return task.lock ~= '' and (task.state == PENDING or task.state == RUNNING)
end

local function rank(task)
  return task.ready_at - PRIORITY_STEP * task.priority
end

-- Chain: the tasks of one queue with one lock. HEADS has its head; a list has the tasks that wait
-- for the head.
local function chain_of(lock, queue)
  return #lock .. ':' .. lock .. ':' .. queue
end

local function waiting_key(chain)
  return base .. 'c:' .. chain
end

-- Returns the time at which recovery must examine a task: the expiry of its lease, or the deadline
-- of its runner. 0: never.
local function deadline(task)
  if task.state == RUNNING then
    return task.lease_expires_at
  end
  return task.state < RUNNING and task.runner_deadline or 0
end

-- Returns the key of the finished tasks of a queue, ordered by the time at which they finished.
local function finished_key(archived, state, queue)
  return base .. (archived == 1 and 'a' or 'f') .. state .. ':' .. queue
end

-- Lowers the earliest time of a queue in an index.
local function index_earliest(index, queue, time)
  call('ZADD', index, 'LT', time, queue)
end

local finished_indexed = {}
local function index_finished(queue, finished_at)
  if (finished_indexed[queue] or math.huge) > finished_at then
    finished_indexed[queue] = finished_at
    index_earliest(FINISHED, queue, finished_at)
  end
end

-- Recomputes and returns the earliest time of a queue in an index, which has this time or a time before it;
-- removes the queue if it has no such tasks.
local function refresh_earliest(index, queue, keys, indexed)
  local earliest
  for _, key in ipairs(keys) do
    local first = call('ZRANGE', key, 0, 0, 'WITHSCORES')[2]
    if first and (not earliest or tonumber(first) < tonumber(earliest)) then
      earliest = first
      if tonumber(first) == indexed then
        return indexed
      end
    end
  end
  if earliest then
    call('ZADD', index, earliest, queue)
  else
    call('ZREM', index, queue)
  end
  return tonumber(earliest)
end

-- Returns the queues of an index whose earliest time is in this range, and their times: at most `max`, after the
-- first `skipped` ones.
local function queues_between(index, from, to, skipped, max)
  local queues, earliest = {}, {}
  local found = call('ZRANGEBYSCORE', index, from, to, 'WITHSCORES', 'LIMIT', skipped, max)
  for at = 1, #found, 2 do
    queues[#queues + 1] = found[at]
    earliest[#queues] = tonumber(found[at + 1])
  end
  return queues, earliest
end

local function refresh_due(queue)
  refresh_earliest(DUE, queue, { base .. 's:' .. queue })
end

local function refresh_finished(queue, indexed)
  local keys = {}
  for state = SUCCEEDED, 6 do
    keys[#keys + 1] = finished_key(0, state, queue)
    keys[#keys + 1] = finished_key(1, state, queue)
  end
  return refresh_earliest(FINISHED, queue, keys, indexed)
end

local function remove_from_indexes(task)
  local state, queue, id = task.state, task.queue, task.id
  if takes_lock(task) then
    call('HDEL', HEADS, chain_of(task.lock, queue))
  end
  if deadline(task) > 0 then
    call('ZREM', DEADLINES, id)
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

-- A pending task whose chain has a head becomes blocked.
local function add_to_indexes(task)
  local queue, id = task.queue, task.id
  if takes_lock(task) and call('HSETNX', HEADS, chain_of(task.lock, queue), id) == 0 and task.state == PENDING then
    task.state = BLOCKED
  end
  local state, deadline_at = task.state, deadline(task)
  if deadline_at > 0 then
    call('ZADD', DEADLINES, deadline_at, id)
  end
  if state == SCHEDULED then
    call('ZADD', base .. 's:' .. queue, decode('>I8', task.run_at), task.run_at .. id)
    index_earliest(DUE, queue, decode('>I8', task.run_at))
  elseif state == PENDING then
    call('ZADD', base .. 'r:' .. queue, rank(task), task.run_at .. id)
    newly_ready[queue] = (newly_ready[queue] or 0) + 1
  elseif state == BLOCKED then
    call('ZADD', waiting_key(chain_of(task.lock, queue)), rank(task), task.run_at .. id)
  elseif state ~= RUNNING then
    call('ZADD', finished_key(task.archived, state, queue), task.finished_at, id)
    index_finished(queue, task.finished_at)
  end
  if task.archived == 0 then
    count(queue, state, 1)
  end
end

-- Whether one binary text precedes another of the same length.
local function is_before(one, other)
  for at = 1, #one do
    local a, b = string.byte(one, at), string.byte(other, at)
    if a ~= b then
      return a < b
    end
  end
  return false
end

local function set_state(task, state)
  remove_from_indexes(task)
  task.state = state
  add_to_indexes(task)
  save(task)
end

-- Removes what remains of tasks whose records the server has lost, except for their entries in the index of their
-- state, which the caller removes.
local function remove_remains(ids)
  for from = 1, #ids, 1000 do
    local to = math.min(from + 999, #ids)
    call('HDEL', base .. 'payload', unpack(ids, from, to))
    call('ZREM', base .. 'ids', unpack(ids, from, to))
  end
end

-- Number of chunks of MAX_PROMOTED ids in which this script may still search for lost records.
local lost_chunks = 100

-- Removes tasks without a record from the beginning of an index of this queue and state, whose members are
-- `run_at` and id. Returns whether none is left there: a script may search only so many.
local function remove_lost(index, queue, state)
  local is_all_lost = true
  while is_all_lost and lost_chunks > 0 do
    lost_chunks = lost_chunks - 1
    local members, ids, lost, lost_ids = call('ZRANGE', index, 0, MAX_PROMOTED - 1), {}, { 'ZREM', index }, {}
    for at, member in ipairs(members) do
      ids[at] = string.sub(member, 9)
    end
    local records = #ids > 0 and call('HMGET', TASKS, unpack(ids)) or {}
    for at, member in ipairs(members) do
      if not records[at] then
        lost[#lost + 1] = member
        lost_ids[#lost_ids + 1] = ids[at]
      end
    end
    local removed = #lost_ids
    if removed > 0 then
      call(unpack(lost))
      remove_remains(lost_ids)
      count(queue, state, -removed)
    end
    is_all_lost = removed == MAX_PROMOTED
  end
  return not is_all_lost
end

-- Returns the first blocked task of a chain, with its member in the list and its rank. Returns nothing if too
-- many records before it are lost: then `recover.lua` elects it.
local function first_blocked(chain, queue)
  local waiting = waiting_key(chain)
  while true do
    local first = call('ZRANGE', waiting, 0, 0, 'WITHSCORES')
    if not first[1] then
      return nil
    end
    local task, is_lost = load_readable(string.sub(first[1], 9))
    if not is_lost then
      return task, first[1], tonumber(first[2])
    end
    if not remove_lost(waiting, queue, BLOCKED) then
      call('ZADD', UNELECTED, now, chain)
      return nil
    end
  end
end

-- Ensures that a chain has a head, and that no blocked task ranks before a head that is not running
-- yet, as `Task::replaces` defines (model/task/admission.rs). A task without a record is no head.
local function elect(lock, queue)
  local chain = chain_of(lock, queue)
  local task, member, before = first_blocked(chain, queue)
  if not task then
    return
  end
  local id = call('HGET', HEADS, chain)
  local head = id and load(id)
  if id and not head then
    call('HDEL', HEADS, chain)
  elseif head then
    local is_overtaken = head.state == PENDING
      and (before < rank(head) or (before == rank(head) and is_before(member, head.run_at .. id)))
    if not is_overtaken then
      return
    end
    call('HDEL', HEADS, chain)
    remove_from_indexes(head)
    head.state = BLOCKED
    add_to_indexes(head)
    save(head)
  end
  set_state(task, PENDING)
end

local function make_ready(task)
  remove_from_indexes(task)
  task.state, task.ready_at = PENDING, now
  add_to_indexes(task)
  save(task)
  if task.lock ~= '' then
    elect(task.lock, task.queue)
  end
end

local function is_earlier(one, other)
  if one.time ~= other.time then
    return one.time < other.time
  end
  return is_before(one.member, other.member)
end

-- Returns the earliest members of these indexes, at most `limit`, in their order, and the number of examined
-- indexes. An index has its key. It may also have its earliest time or a time before it; then the indexes are
-- in the order of these times, and the last ones are not examined if the earlier ones have enough members. At
-- most 3 times `limit` members are held at once. Unless `orders_ties`, members with the time of the last one are
-- left out in later indexes, although their ids may be lower: a great many may have the same time.
local function earliest_members(indexes, limit, until_time, orders_ties)
  local found, last, sources, examined = {}, 0, 0, 0
  local function sort()
    if sources > 1 then
      table.sort(found, is_earlier)
    end
    for at = #found, limit + 1, -1 do
      found[at] = nil
    end
  end
  for _, index in ipairs(indexes) do
    local earliest = #found >= limit and index.earliest
    if earliest and (earliest > last or (earliest == last and not orders_ties)) then
      break
    end
    examined = examined + 1
    local members = call('ZRANGEBYSCORE', index.key, '-inf', until_time, 'WITHSCORES', 'LIMIT', 0, limit)
    for at = 1, #members, 2 do
      found[#found + 1] = { member = members[at], time = tonumber(members[at + 1]), index = index }
    end
    if #members > 0 then
      sources = sources + 1
      last = math.max(last, found[#found].time)
      if #found >= 2 * limit then
        sort()
        last = found[limit].time
      end
      if #found >= limit then
        until_time = (orders_ties and '' or '(') .. string.format('%.0f', last)
      end
    end
  end
  sort()
  return found, examined
end

-- Makes the due tasks of these queues pending. Returns their number and that of the examined queues, which
-- may be fewer if `earliest` has the times of the queues.
local function promote(queues, earliest)
  local indexes, promoted = {}, 0
  for at, queue in ipairs(queues) do
    indexes[at] = { key = base .. 's:' .. queue, earliest = earliest and earliest[at], queue = queue }
  end
  local due, examined = earliest_members(indexes, MAX_PROMOTED, now)
  local lost = {}
  for _, found in ipairs(due) do
    local id = string.sub(found.member, 9)
    local task, is_lost = load_readable(id)
    if task then
      make_ready(task)
      promoted = promoted + 1
    elseif is_lost then
      call('ZREM', found.index.key, found.member)
      count(found.index.queue, SCHEDULED, -1)
      lost[#lost + 1] = id
    end
  end
  remove_remains(lost)
  return promoted, examined
end

-- === Batched writes ===

-- One command for many tasks costs the server, its log and its replicas less than many commands. So
-- records and index entries are collected; code that reads them must call `flush_batch` first.
local batch = {}

-- Returns the pending command that collects arguments for this key.
local function batched(command, key)
  local name = command .. key
  local pending = batch[name]
  if not pending then
    pending = { command, key }
    batch[name] = pending
  end
  return pending
end

local function flush(pending)
  if #pending > 2 then
    call(unpack(pending))
    for at = #pending, 3, -1 do
      pending[at] = nil
    end
  end
end

local function append(pending, one, other)
  local length = #pending
  pending[length + 1] = one
  pending[length + 2] = other
  if length > 1000 then
    flush(pending)
  end
end

local function flush_batch()
  for _, pending in pairs(batch) do
    flush(pending)
  end
end

-- === Counts and notifications ===

local function write_counts()
  for queue, by_state in pairs(counts) do
    for state, by in pairs(by_state) do
      if by ~= 0 then
        call('HINCRBY', base .. 'q:' .. queue, state, by)
      end
    end
  end
  counts = {}
end

-- Writes what was collected, and notifies other stores. Returns pairs of queue and number of tasks,
-- for which the caller notifies its own workers.
local function flush_and_notify()
  flush_batch()
  write_counts()
  local own_share = {}
  for queue, tasks in pairs(newly_ready) do
    own_share[#own_share + 1] = queue
    own_share[#own_share + 1] = notify_stores(queue, tasks)
  end
  return own_share
end
