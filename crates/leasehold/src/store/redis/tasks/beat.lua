-- Takes a worker's signs of life.
-- ARGV: the worker, what it says about itself (empty: nothing, then it is not listed for that), how long its leases go on, then for each of them the task, the token,
--       how far it has come, and whether the worker has started it ('1').

local worker, ttl = ARGV[4], tonumber(ARGV[6])
local known = call('HGET', base .. 'workers', worker)
if known or ARGV[5] ~= '' then
  local started_at = known and open('>I8', known) or now
  local info = ARGV[5] ~= '' and ARGV[5] or string.sub(known, 17)
  call('HSET', base .. 'workers', worker, pack('>I8I8', started_at, now) .. info)
  call('ZADD', base .. 'seen', now, worker)
end

local beats = {}
for at = 7, #ARGV, 4 do
  local task = load(ARGV[at])
  if task and task.state == RUNNING and task.token == tonumber(ARGV[at + 1]) then
    task.lease_end = now + ttl
    if ARGV[at + 3] == '1' or ARGV[at + 2] ~= '' then
      task.begun = 1
    end
    if ARGV[at + 2] ~= '' then
      said(task)[PROGRESS] = ARGV[at + 2]
    end
    save(task)
    call('ZADD', RUNS, task.lease_end, task.id)
    beats[#beats + 1] = '+' .. said(task)[CANCEL]
  else
    beats[#beats + 1] = '-'
  end
end
return beats
