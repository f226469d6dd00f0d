-- Adds tasks, all in this one step.
-- ARGV: for each its id, how it is asked for, the names and the rest of its record, and its payload if that is kept apart.

local NOW, AT = 0, 1
local REUSE_FAILED, REUSE_FINISHED = 1, 2
local queues, answers = {}, {}

-- Whether a key that is in use keeps this task out; the answer if so.
local function taken(queue, key, fingerprint, reuse)
  local earlier = call('HGET', base .. 'k:' .. queue, key)
  local task = earlier and load(earlier)
  if not task then
    return nil
  end
  if task.fingerprint ~= fingerprint then
    return 'k' .. earlier
  end
  if not ((reuse == REUSE_FAILED and task.state == FAILED) or (reuse == REUSE_FINISHED and task.state >= SUCCEEDED)) then
    return 'd' .. earlier
  end
  task.keyless = 1
  save(task)
  return nil
end

local function add(id, ask, names, payload)
  if call('HEXISTS', TASKS, id) == 1 then
    return 'a'
  end
  local when, run_at, priority, attempts, reuse, key = open('>Bc8hI4BBc0', ask)
  local queue, lock, fingerprint = open('>Bc0Bc0c8', names)
  if key ~= '' then
    local answer = taken(queue, key, fingerprint, reuse)
    if answer then
      return answer
    end
    call('HSET', base .. 'k:' .. queue, key, id)
  end
  local due = now
  if when == NOW then
    run_at = pack('>I8', now)
  elseif when == AT then
    due = open('>I8', run_at)
  else
    due = now + open('>I8', run_at)
    run_at = pack('>I8', due)
  end
  local task = {
    id = id, state = due > now and SCHEDULED or PENDING, archived = 0, queue = queue, lock = lock, run_at = run_at,
    ready_at = now, priority = priority,
  }
  file(task)
  local record = pack(BASE, 1, task.state, 0, payload == '' and 0 or 1, 0, 0, priority, attempts, run_at, now, now)
  call('HSET', TASKS, id, record .. names)
  if payload ~= '' then
    call('HSET', base .. 'payload', id, payload)
  end
  call('ZADD', base .. 'ids', 0, id)
  if not queues[queue] then
    queues[queue] = true
    call('SADD', base .. 'queues', queue)
  end
  return 'a'
end

for at = 4, #ARGV, 4 do
  answers[#answers + 1] = add(ARGV[at], ARGV[at + 1], ARGV[at + 2], ARGV[at + 3])
end
return { bells(), answers }
