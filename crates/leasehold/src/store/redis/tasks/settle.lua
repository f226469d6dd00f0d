-- Ends attempts that went well.
-- ARGV: for each the task, the token and its result.

local ids, settled = {}, {}
for at = 4, #ARGV, 3 do
  ids[#ids + 1] = ARGV[at]
end
local records = call('HMGET', TASKS, unpack(ids))

local tasks, written, runs = {}, many('HSET', TASKS), many('ZREM', RUNS)
for at, id in ipairs(ids) do
  tasks[at] = records[at] and open_task(id, records[at])
end

for at, task in ipairs(tasks) do
  if not task or task.token ~= tonumber(ARGV[3 * at + 2]) then
    settled[at] = -1
  elseif task.state ~= RUNNING then
    -- This settlement was made already: only its worker leaves a task with the token of its lease.
    settled[at] = task.state
  else
    settled[at] = SUCCEEDED
    task.state, task.begun, task.lease_end, task.finished_at, task.wanted = SUCCEEDED, 0, 0, now, 0
    task.version, task.updated_at = task.version + 1, now
    local result = ARGV[3 * at + 3]
    if result ~= '' or task.said_at <= #task.record then
      said(task)[RESULT] = result
      said(task)[ERROR] = ''
    end
    gather(written, task.id, close_task(task))
    gather(runs, task.id)
    gather(many('ZADD', finished_key(0, SUCCEEDED, task.queue)), now, task.id)
    note_over(task.queue, now)
    count(task.queue, RUNNING, -1)
    count(task.queue, SUCCEEDED, 1)
    if task.lock ~= '' then
      call('HDEL', HEADS, chain_of(task.lock, task.queue))
      elect(task.lock, task.queue)
    end
  end
end
return { bells(), settled }
