-- Puts changed records in the place of those that they were made from, each if that one is still there.
-- ARGV: for each the task, the record that was read, the new record, and the new payload if that is kept apart and changed.

local states = {}
for at = 4, #ARGV, 4 do
  local id, read, record, payload = ARGV[at], ARGV[at + 1], ARGV[at + 2], ARGV[at + 3]
  if call('HGET', TASKS, id) ~= read then
    states[#states + 1] = -1
  else
    local was, task = open_task(id, read), open_task(id, record)
    unfile(was)
    file(task)
    save(task)
    if payload ~= '' then
      call('HSET', base .. 'payload', id, payload)
    elseif was.apart == 1 and task.apart == 0 then
      call('HDEL', base .. 'payload', id)
    end
    if task.lock ~= '' then
      elect(task.lock, task.queue)
      -- Another task of its chain may have taken its place, or it that of another.
      task = load(id)
    end
    states[#states + 1] = task.state
  end
end
return { bells(), states }
