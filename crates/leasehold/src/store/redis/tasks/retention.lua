-- Archives or purges finished tasks, the oldest first. If they may be in any queue, one call searches MAX_QUEUES
-- queues: those with the earliest times may have only tasks that are kept, of another state or archived.
-- ARGV: 'archive' or 'purge', time before which the tasks must have finished, maximum number of
--       tasks, queue (empty: all), state (empty: all), and the position in the index of queues at which the
--       search begins: a time ('-inf': the beginning), and the number of queues with this time to skip.
-- Returns the number of tasks, and the position at which the caller continues if that is less than the
-- maximum; its time is empty after the last queue.

local MAX_QUEUES = 250
local action, before, limit = ARGV[4], '(' .. ARGV[5], tonumber(ARGV[6])
local queues, earliest = { ARGV[7] }, {}
if ARGV[7] == '' then
  queues, earliest = queues_between(FINISHED, ARGV[9], before, ARGV[10], MAX_QUEUES)
end
local states = ARGV[8] ~= '' and { ARGV[8] } or { SUCCEEDED, FAILED, ABORTED }
local indexes = {}
for at, queue in ipairs(queues) do
  for _, state in ipairs(states) do
    for archived = 0, action == 'purge' and 1 or 0 do
      local key = finished_key(archived, state, queue)
      indexes[#indexes + 1] = {
        key = key, earliest = earliest[at], queue = queue, state = tonumber(state), archived = archived,
      }
    end
  end
end
local found, examined = earliest_members(indexes, limit, before, true)

local tasks = {}
for at = 1, #found do
  tasks[at] = load(found[at].member)
end
for at, task in ipairs(tasks) do
  local id = found[at].member
  if task then
    remove_from_indexes(task)
  else
    local index = found[at].index -- The server has lost the record.
    call('ZREM', index.key, id)
    if index.archived == 0 then
      count(index.queue, index.state, -1)
    end
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
-- Of the queues that were searched, the next call skips those that still have the last time. If another client
-- moves one of these in between, a queue with the same time is left to a later search.
local last, refreshed, skipped = earliest[#queues], {}, 0
for at = 1, examined do
  local queue, indexed = indexes[at].queue, indexes[at].earliest
  if not refreshed[queue] then
    refreshed[queue] = true
    if refresh_finished(queue, indexed) == last and indexed == last then
      skipped = skipped + 1
    end
  end
end
write_counts()
if #queues < MAX_QUEUES then
  return { #found, '', 0 }
end
if last == tonumber(ARGV[9]) then
  skipped = skipped + tonumber(ARGV[10])
end
return { #found, string.format('%.0f', last), skipped }
