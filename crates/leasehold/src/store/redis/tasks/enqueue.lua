-- Adds tasks, all in this one step.
-- ARGV: for each its id, how it is asked for, the names and the rest of its record, and its payload if that is kept apart.

local ASK = '>Bc8hI4BI4c8I8Bc0'
local NOW, AT = 0, 1
local REUSE_FAILED, REUSE_FINISHED = 1, 2
local NO_LIMIT = 4294967295
local queues, added, answers, earliest = {}, {}, {}, {}
local records, ids = many('HSET', TASKS), many('ZADD', base .. 'ids')

-- Whether a key that is in use keeps this task out; the answer if so, else the task that loses it. Only if it keeps it out
-- does it matter whether both are about the same, by this fingerprint or by that of earlier versions.
local function taken(queue, key, fingerprint, old_fingerprint, reuse)
  -- Perhaps it came with this very call.
  write_batch()
  local earlier = call('HGET', base .. 'k:' .. queue, key)
  local task = earlier and load(earlier)
  if not task then
    return nil, nil
  end
  if (reuse == REUSE_FAILED and task.state == FAILED) or (reuse == REUSE_FINISHED and task.state >= SUCCEEDED) then
    return nil, task
  end
  local same = task.fingerprint == fingerprint or task.fingerprint == old_fingerprint
  return (same and 'd' or 'k') .. earlier
end

-- The head of a lock in a queue, if more of that queue have or await the lock than there is room for.
local function no_room(lock, queue, room)
  if lock == '' or room == NO_LIMIT then
    return nil
  end
  local chain = chain_of(lock, queue)
  local head = call('HGET', HEADS, chain)
  if head and call('ZCARD', waiting_key(chain)) >= room then
    return head
  end
  return nil
end

local function add(id, ask, names, payload)
  if added[id] or call('HEXISTS', TASKS, id) == 1 then
    return 'a'
  end
  local when, run_at, priority, attempts, reuse, room, old_fingerprint, wanted, key = open(ASK, ask)
  local queue, lock, fingerprint = open('>Bc0Bc0c8', names)
  local answer, earlier
  if key ~= '' then
    answer, earlier = taken(queue, key, fingerprint, old_fingerprint, reuse)
    if answer then
      return answer
    end
  end
  local head = no_room(lock, queue, room)
  if head then
    return 'f' .. head
  end
  if earlier then
    earlier.keyless = 1
    save(earlier)
  end
  if key ~= '' then
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
  local state, blocked = due > now and SCHEDULED or PENDING, false
  if lock ~= '' and state == PENDING and call('HSETNX', HEADS, chain_of(lock, queue), id) == 0 then
    state, blocked = BLOCKED, true
    call('ZADD', waiting_key(chain_of(lock, queue)), now - STEP * priority, run_at .. id)
  elseif state == PENDING then
    gather(many('ZADD', base .. 'r:' .. queue), now - STEP * priority, run_at .. id)
    woken[queue] = (woken[queue] or 0) + 1
  else
    gather(many('ZADD', base .. 's:' .. queue), due, run_at .. id)
    earliest[queue] = math.min(earliest[queue] or due, due)
  end
  count(queue, state, 1)
  if wanted > 0 then
    wanted = now + wanted
    call('ZADD', RUNS, wanted, id)
  end
  local format, ending = close_format(lock, wanted)
  local record = pack(BASE, format, state, 0, payload == '' and 0 or 1, 0, 0, priority, attempts, run_at, now, now)
  gather(records, id, record .. names .. ending)
  gather(ids, 0, id)
  if payload ~= '' then
    call('HSET', base .. 'payload', id, payload)
  end
  if not queues[queue] then
    queues[queue] = true
    call('SADD', base .. 'queues', queue)
  end
  added[id] = true
  if blocked then
    -- It may come before a head that does not run yet; that may have come with this very call.
    write_batch()
    elect(lock, queue)
  end
  return 'a'
end

for at = 4, #ARGV, 4 do
  local key = select(8, open(ASK, ARGV[at + 1]))
  local earlier = key ~= '' and call('HGET', base .. 'k:' .. open('>Bc0', ARGV[at + 2]), key)
  if earlier then
    load(earlier)
  end
end
for at = 4, #ARGV, 4 do
  answers[#answers + 1] = add(ARGV[at], ARGV[at + 1], ARGV[at + 2], ARGV[at + 3])
end
for queue, due in pairs(earliest) do
  note(DUE, queue, due)
end
return { bells(), answers }
