-- Settles successful attempts, like `TaskOp::Settle` of the model.
-- ARGV: for each attempt the task, the token and the result.

local ids, settled = {}, {}
for at = 4, #ARGV, 3 do
  ids[#ids + 1] = ARGV[at]
end
local records = call('HMGET', TASKS, unpack(ids))

local tasks, written, deadlines = {}, batched('HSET', TASKS), batched('ZREM', DEADLINES)
for at, id in ipairs(ids) do
  tasks[at] = records[at] and decode_task(id, records[at])
end

for at, task in ipairs(tasks) do
  if not task or task.token ~= tonumber(ARGV[3 * at + 2]) then
    settled[at] = -1
  elseif task.state ~= RUNNING then
    -- Repeated call, settled before: only the settlement by its worker leaves a task with the token
    -- of its lease.
    settled[at] = task.state
  else
    settled[at] = SUCCEEDED
    task.state, task.begun, task.lease_expires_at, task.finished_at, task.runner_deadline = SUCCEEDED, 0, 0, now, 0
    task.version, task.updated_at = task.version + 1, now
    local result = ARGV[3 * at + 3]
    if result ~= '' or task.extras_at <= #task.record then
      extras(task)[RESULT] = result
      extras(task)[ERROR] = ''
    end
    append(written, task.id, encode_task(task))
    append(deadlines, task.id)
    append(batched('ZADD', finished_key(0, SUCCEEDED, task.queue)), now, task.id)
    index_finished(task.queue, now)
    count(task.queue, RUNNING, -1)
    count(task.queue, SUCCEEDED, 1)
    if task.lock ~= '' then
      call('HDEL', HEADS, chain_of(task.lock, task.queue))
      elect(task.lock, task.queue)
    end
  end
end
return { flush_and_notify(), settled }
