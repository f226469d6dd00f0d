-- Takes a worker's signs of life.
-- ARGV: the worker, what it says about itself, how long its leases go on, then for each of them the task, the token and
--       how far it has come.

local worker, ttl = ARGV[4], tonumber(ARGV[6])
local known = call('HGET', base .. 'workers', worker)
local started_at = known and open('>I8', known) or now
call('HSET', base .. 'workers', worker, pack('>I8I8', started_at, now) .. ARGV[5])
call('ZADD', base .. 'seen', now, worker)

local beats = {}
for at = 7, #ARGV, 3 do
  local task = load(ARGV[at])
  if task and task.state == RUNNING and task.token == tonumber(ARGV[at + 1]) then
    task.lease_end = now + ttl
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
