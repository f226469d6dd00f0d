-- Reads tasks.
-- ARGV: 'by_id', whether payloads are left out ('1') and ids; or 'by_key', queue and key; or 'expired' and
--       maximum number, for tasks whose lease has expired; or 'newest', whether payloads are left out
--       ('1'), id before which the tasks must be (empty: any) and maximum number.
--       Or 'ids_by_state', state (not running), queue (empty: any), whether archived tasks count, too ('1'),
--       and maximum number: returns only the ids, unordered, or 'too_many'.
--       Or 'running_ids', the position at which the search begins, maximum number of tasks to search, and
--       worker, queue and lock (each empty: any): returns only the ids, unordered, and the position at which
--       the search continues. A position is a deadline ('-inf': the beginning, empty: the end), and the
--       number of tasks with this deadline to skip.

local selector, ids = ARGV[4], {}
if selector == 'ids_by_state' then
  local state, keys, total = tonumber(ARGV[5]), {}, 0
  for _, queue in ipairs(ARGV[6] ~= '' and { ARGV[6] } or call('SMEMBERS', base .. 'queues')) do
    if state == SCHEDULED or state == PENDING then
      keys[#keys + 1] = base .. (state == PENDING and 'r:' or 's:') .. queue
    else
      for archived = 0, tonumber(ARGV[7]) do
        keys[#keys + 1] = finished_key(archived, state, queue)
      end
    end
  end
  for _, key in ipairs(keys) do
    total = total + call('ZCARD', key)
    if total > tonumber(ARGV[8]) then
      return { now, 'too_many' }
    end
    for _, member in ipairs(call('ZRANGE', key, 0, -1)) do
      ids[#ids + 1] = string.sub(member, -16)
    end
  end
  return { now, ids }
end

if selector == 'running_ids' then
  local from, skipped, max = ARGV[5], tonumber(ARGV[6]), tonumber(ARGV[7])
  local worker, queue, lock = ARGV[8], ARGV[9], ARGV[10]
  -- Also true for a record that cannot be read: the caller reports it.
  local function is_wanted(id, record)
    local format = string.byte(record)
    if format == FORMAT or format == OLD_FORMAT then
      -- Most records are left out without decoding them.
      if string.byte(record, 2) ~= RUNNING or not string.find(record, worker, 1, true) then
        return false
      end
    end
    local is_readable, task = pcall(decode_task, id, record)
    return not is_readable or ((worker == '' or task.worker == worker) and (queue == '' or task.queue == queue)
      and (lock == '' or task.lock == lock))
  end
  local found = call('ZRANGEBYSCORE', DEADLINES, from, '+inf', 'WITHSCORES', 'LIMIT', skipped, max)
  local searched, bytes = 0, 0
  while 2 * searched < #found and bytes < CHUNK_BYTES do
    local id = found[2 * searched + 1]
    local record = call('HGET', TASKS, id)
    searched = searched + 1
    if record then
      bytes = bytes + #record
      if is_wanted(id, record) then
        ids[#ids + 1] = id
      end
    end
  end
  if searched < max and 2 * searched == #found then
    return { now, ids, '', 0 }
  end
  -- A heartbeat moves a task towards the end, so the rest of the search finds it. But if the next call skips the
  -- tasks that had its deadline, it also skips others. So it searches the last deadline again, unless more tasks
  -- have the same one than one call searches.
  local first, last = found[2], found[2 * searched]
  if first ~= last then
    return { now, ids, last, 0 }
  end
  return { now, ids, last, searched + (last == from and skipped or 0) }
end

local is_brief = false
if selector == 'by_id' then
  is_brief = ARGV[5] == '1'
  for at = 6, #ARGV do
    ids[#ids + 1] = ARGV[at]
  end
elseif selector == 'by_key' then
  ids[1] = call('HGET', base .. 'k:' .. ARGV[5], ARGV[6]) or nil
elseif selector == 'expired' then
  ids = call('ZRANGEBYSCORE', DEADLINES, '-inf', now, 'LIMIT', 0, ARGV[5])
elseif selector == 'newest' then
  is_brief = ARGV[5] == '1'
  local from = ARGV[6] == '' and '+' or '(' .. ARGV[6]
  ids = call('ZREVRANGEBYLEX', base .. 'ids', from, '-', 'LIMIT', 0, ARGV[7])
end

-- Stops when the reply is large, but returns at least one task. Also returns the number of examined
-- ids.
local found, lost, examined, bytes = {}, {}, 0, 0
for at, id in ipairs(ids) do
  if bytes >= CHUNK_BYTES then
    break
  end
  examined = at
  local record = call('HGET', TASKS, id)
  if record then
    found[#found + 1] = id
    found[#found + 1] = record
    local is_external = string.byte(record, 4) == 1 and not is_brief
    found[#found + 1] = is_external and call('HGET', base .. 'payload', id) or ''
    bytes = bytes + #record + #found[#found]
  elseif selector == 'expired' then
    call('ZREM', DEADLINES, id) -- The server has lost the record: its id must not hide later ones.
    lost[#lost + 1] = id
  end
end
remove_remains(lost)
return { now, found, examined, #ids }
