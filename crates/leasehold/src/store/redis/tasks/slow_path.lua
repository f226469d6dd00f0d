-- Replaces records, each only if it is still the one that was read.
-- ARGV: for each change the task, the record that was read, the new record, and the new payload if
--       it is stored separately and has changed.

local states = {}
for at = 4, #ARGV, 4 do
  local id, expected, record, payload = ARGV[at], ARGV[at + 1], ARGV[at + 2], ARGV[at + 3]
  if call('HGET', TASKS, id) ~= expected then
    states[#states + 1] = -1
  else
    local before, task = decode_task(id, expected), decode_task(id, record)
    remove_from_indexes(before)
    add_to_indexes(task)
    save(task)
    if payload ~= '' then
      call('HSET', base .. 'payload', id, payload)
    elseif before.external_payload == 1 and task.external_payload == 0 then
      call('HDEL', base .. 'payload', id)
    end
    if task.lock ~= '' then
      elect(task.lock, task.queue)
      -- The election may have changed the state of this task.
      task = load(id)
    end
    states[#states + 1] = task.state
  end
end
return { flush_and_notify(), states }
