-- Puts finished tasks away, or forgets them, the oldest first.
-- ARGV: 'archive' or 'purge', before which time they must have ended, how many at most, then the queue and the state, if
--       only those of one are meant.

local what, before, limit = ARGV[4], '(' .. ARGV[5], tonumber(ARGV[6])
note_all()
local queues = ARGV[7] ~= '' and { ARGV[7] } or call('ZRANGEBYSCORE', OVER, '-inf', before, 'LIMIT', 0, 1000)
local states = ARGV[8] ~= '' and { ARGV[8] } or { 4, 5, 6 }
local found = {}
for _, queue in ipairs(queues) do
  for _, state in ipairs(states) do
    for archived = 0, what == 'purge' and 1 or 0 do
      local ended = call('ZRANGEBYSCORE', finished_key(archived, state, queue), '-inf', before, 'WITHSCORES', 'LIMIT', 0,
        limit)
      for at = 1, #ended, 2 do
        found[#found + 1] = { id = ended[at], finished_at = tonumber(ended[at + 1]) }
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

local tidied, tasks = math.min(limit, #found), {}
for at = 1, tidied do
  tasks[at] = load(found[at].id)
end
for _, task in ipairs(tasks) do
  unfile(task)
  if what == 'archive' then
    task.archived = 1
    file(task)
    save(task)
  else
    local _, _, key = open('>I8I8Bc0', task.rest)
    if key ~= '' and task.keyless == 0 then
      call('HDEL', base .. 'k:' .. task.queue, key)
    end
    call('HDEL', TASKS, task.id)
    call('HDEL', base .. 'payload', task.id)
    call('ZREM', base .. 'ids', task.id)
  end
end
for _, queue in ipairs(queues) do
  renote_over(queue)
end
write_counts()
return tidied
