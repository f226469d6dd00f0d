-- Gives a worker what is next.
-- ARGV: the worker, how long each lease lasts, how many at most, whether workers of this store wait ('1'), how many tasks
--       the worker starts at once, whether it has no other task ('1'), how many of the answer it has already, whether
--       leases that have run out are to be ended first ('1'), how many bytes of payload fill the answer, the queues.

local worker, ttl, max = ARGV[4], tonumber(ARGV[5]), tonumber(ARGV[6])
local begin, idle, given = tonumber(ARGV[8]), ARGV[9], tonumber(ARGV[10])
local full, bytes = tonumber(ARGV[12]), 0
local QUEUES_AT = 13
if ARGV[11] == '1' and #call('ZRANGEBYSCORE', RUNS, '-inf', now, 'LIMIT', 0, 1) > 0 then
  -- The rules end them; then the caller asks again.
  return { {}, now, '', {}, 2 }
end
local queues = {}
for at = QUEUES_AT, #ARGV do
  if call('HEXISTS', base .. 'q:' .. ARGV[at], 'pause') == 0 then
    queues[#queues + 1] = ARGV[at]
  end
end
promote(queues)
write_counts()

-- The first of all these queues: they are one line.
local function first()
  local found = {}
  for _, queue in ipairs(queues) do
    local ready = base .. 'r:' .. queue
    local taken = many('ZREM', ready)
    if #queues == 1 then
      for at, member in ipairs(call('ZRANGE', ready, 0, max - 1)) do
        found[at] = { member = member, taken = taken }
      end
      return found
    end
    local members = call('ZRANGE', ready, 0, max - 1, 'WITHSCORES')
    for at = 1, #members, 2 do
      found[#found + 1] = { member = members[at], rank = tonumber(members[at + 1]), taken = taken }
    end
  end
  table.sort(found, function(one, other)
    if one.rank ~= other.rank then
      return one.rank < other.rank
    end
    return is_before(one.member, other.member)
  end)
  return found
end

local ids, members, leased, more = {}, {}, {}, 0
for at, task in ipairs(first()) do
  if at > max then
    break
  end
  ids[at], members[at] = string.sub(task.member, 9), task
end
local records = #ids > 0 and call('HMGET', TASKS, unpack(ids)) or {}
local ends, written, runs = now + ttl, many('HSET', TASKS), many('ZADD', RUNS)

-- What `runs_alone`, `may_be_fetched_ahead` and `gives` of model/task/begin.rs do: nil if the answer ends before the task,
-- else whether it counts as begun, and whether it runs alone.
local function gives(token, attempt, attempts, expiries)
  if expiries >= 2 or (expiries > 0 and attempt + 1 >= attempts) then
    if given > 0 then
      return nil
    end
    return idle == '1' and 1 or 0, true
  end
  if given < begin then
    return 1, false
  end
  if token == 0 and attempts > 1 then
    return 0, false
  end
  return nil
end

-- What `open_task` and `close_task` would do, without a table for each task: this is what is done most. Says whether the
-- task was given, and whether it runs alone.
local function lease(id, record, taken, member)
  local whole, format, ending = record, FORMAT, ''
  if string.byte(record) == WITH_DEADLINE then
    format, ending = WITH_DEADLINE, string.sub(whole, -8)
  end
  record = open_format(record)
  local _, _, archived, apart, keyless, changed, priority, attempts, run_at, ready_at, created_at, names_at =
    open(BASE, record)
  local attempt, token, version, expiries, rest = 0, 0, 1, 0, nil
  local task = changed == 1 and open_task(id, whole)
  if task then
    attempt, token, version, expiries = task.attempt, task.token, task.version, task.expiries
  end
  local begun, alone = gives(token, attempt, attempts, expiries)
  if not begun then
    return false, false
  end
  given = given + 1
  gather(taken, member)
  if task then
    said(task)[PROGRESS] = ''
    rest = string.sub(record, task.names_at, task.said_at - 1) .. close_said(task)
  else
    rest = string.sub(record, names_at)
  end
  local queue = open('>Bc0', rest)
  count(queue, PENDING, -1)
  count(queue, RUNNING, 1)
  if woken[queue] then
    woken[queue] = woken[queue] - 1
  end
  token = math.min(math.max(token + 1, now), MAX_TOKEN)
  record = pack(BASE, format, RUNNING, archived, apart, keyless, 1, priority, attempts, run_at, ready_at, created_at)
    .. pack(CHANGED, attempt + 1, token, version + 1, now, now, ends, 0, begun, expiries, #worker, worker) .. rest .. ending
  gather(written, id, record)
  gather(runs, ends, id)
  local payload = apart == 1 and call('HGET', base .. 'payload', id) or ''
  -- Those that are not kept apart are too short to fill an answer of one script.
  bytes = bytes + #payload
  leased[#leased + 1] = id
  leased[#leased + 1] = record
  leased[#leased + 1] = payload
  return true, alone
end

local alone = false
for at, id in ipairs(ids) do
  if alone then
    more = 1
    break
  end
  if bytes >= full then
    break
  end
  local task = members[at]
  if records[at] then
    local is_given
    is_given, alone = lease(id, records[at], task.taken, task.member)
    if not is_given then
      more = 1
      break
    end
  else
    gather(task.taken, task.member)
  end
end

local next_due = ''
if #leased < 3 * max and bytes < full then
  for _, queue in ipairs(queues) do
    local first = call('ZRANGE', base .. 's:' .. queue, 0, 0)[1]
    if first and (next_due == '' or is_before(string.sub(first, 1, 8), next_due)) then
      next_due = string.sub(first, 1, 8)
    end
  end
end
-- What was put in line and not taken is for others who wait, before this store is one of them.
for queue, tasks in pairs(woken) do
  woken[queue] = tasks > 0 and tasks or nil
end
local left = bells()
if ARGV[7] == '1' then
  for at = QUEUES_AT, #ARGV do
    call('ZADD', base .. 'w:' .. ARGV[at], 'NX', now, own)
  end
end
return { left, now, next_due, leased, more }
