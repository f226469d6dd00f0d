-- Records the heartbeat of a worker and extends its leases, like `TaskOp::Heartbeat` of the model.
-- ARGV: worker, its description (empty: none, and then the call does not register the worker), TTL
--       of the leases, then for each lease the task, the token, the progress, and whether the
--       worker has started the task ('1').

local worker, ttl = ARGV[4], tonumber(ARGV[6])
local known = call('HGET', base .. 'workers', worker)
if known or ARGV[5] ~= '' then
  local started_at = known and decode('>I8', known) or now
  local info = ARGV[5] ~= '' and ARGV[5] or string.sub(known, 17)
  call('HSET', base .. 'workers', worker, encode('>I8I8', started_at, now) .. info)
  call('ZADD', base .. 'seen', now, worker)
end

local results = {}
for at = 7, #ARGV, 4 do
  local task = load(ARGV[at])
  if task and task.state == RUNNING and task.token == tonumber(ARGV[at + 1]) then
    task.lease_expires_at = now + ttl
    if ARGV[at + 3] == '1' or ARGV[at + 2] ~= '' then
      task.begun = 1
    end
    if ARGV[at + 2] ~= '' then
      extras(task)[PROGRESS] = ARGV[at + 2]
    end
    save(task)
    call('ZADD', DEADLINES, task.lease_expires_at, task.id)
    results[#results + 1] = '+' .. extras(task)[CANCEL]
  else
    results[#results + 1] = '-'
  end
end
return results
