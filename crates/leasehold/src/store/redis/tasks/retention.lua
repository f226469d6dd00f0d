-- Archives or purges finished tasks, the oldest first.
-- ARGV: 'archive' or 'purge', time before which the tasks must have finished, maximum number of
--       tasks, queue (empty: all), state (empty: all).

local action, before, limit = ARGV[4], '(' .. ARGV[5], tonumber(ARGV[6])
local queues = ARGV[7] ~= '' and { ARGV[7] } or call('ZRANGEBYSCORE', FINISHED, '-inf', before, 'LIMIT', 0, 1000)
local states = ARGV[8] ~= '' and { ARGV[8] } or { SUCCEEDED, FAILED, ABORTED }
local found = {}
for _, queue in ipairs(queues) do
  for _, state in ipairs(states) do
    for archived = 0, action == 'purge' and 1 or 0 do
      local key = finished_key(archived, state, queue)
      local ended = call('ZRANGEBYSCORE', key, '-inf', before, 'WITHSCORES', 'LIMIT', 0, limit)
      for at = 1, #ended, 2 do
        found[#found + 1] = { id = ended[at], finished_at = tonumber(ended[at + 1]), key = key }
      end
    end
  end
end
table.sort(found, function(one, other)
  if one.finished_at ~= other.finished_at then
    return one.finished_at < other.finished_at
  end
  return is_before(one.id, other.id)
end)

local selected, tasks = math.min(limit, #found), {}
for at = 1, selected do
  tasks[at] = load(found[at].id)
end
for at, task in ipairs(tasks) do
  local id = found[at].id
  if task then
    remove_from_indexes(task)
  else
    call('ZREM', found[at].key, id) -- The server has lost the record.
  end
  if task and action == 'archive' then
    task.archived = 1
    add_to_indexes(task)
    save(task)
  elseif task then
    local _, _, key = decode('>I8I8Bc0', task.rest)
    if key ~= '' and task.keyless == 0 then
      call('HDEL', base .. 'k:' .. task.queue, key)
    end
    call('HDEL', TASKS, id)
  end
  if not task or action == 'purge' then
    call('HDEL', base .. 'payload', id)
    call('ZREM', base .. 'ids', id)
  end
end
for _, queue in ipairs(queues) do
  refresh_finished(queue)
end
write_counts()
return selected
