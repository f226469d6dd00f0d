-- Ends attempts that went well.
-- ARGV: for each the task, the token and its result.

local settled = {}
for at = 4, #ARGV, 3 do
  local task = load(ARGV[at])
  if not task or task.token ~= tonumber(ARGV[at + 1]) then
    settled[#settled + 1] = -1
  else
    if task.state == RUNNING then
      unfile(task)
      task.state, task.lease_end, task.finished_at = SUCCEEDED, 0, now
      task.version, task.updated_at = task.version + 1, now
      said(task)[RESULT] = ARGV[at + 2]
      said(task)[ERROR] = ''
      file(task)
      save(task)
      if task.lock ~= '' then
        unblock(task.lock)
      end
    end
    -- Otherwise this settlement was made already: only its worker leaves a task with the token of its lease.
    settled[#settled + 1] = task.state
  end
end
return { bells(), settled }
