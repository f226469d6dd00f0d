-- Gives a worker what is next.
-- ARGV: the worker, how long each lease lasts, how many at most, whether workers of this store wait ('1'), the queues.

local worker, ttl, max = ARGV[4], tonumber(ARGV[5]), tonumber(ARGV[6])
local queues = {}
for at = 8, #ARGV do
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

local ids, leased = {}, {}
for at, task in ipairs(first()) do
  if at > max then
    break
  end
  ids[at] = string.sub(task.member, 9)
  gather(task.taken, task.member)
end
local records = #ids > 0 and call('HMGET', TASKS, unpack(ids)) or {}
local ends, written, runs = now + ttl, many('HSET', TASKS), many('ZADD', RUNS)

-- What `open_task` and `close_task` would do, without a table for each task: this is what is done most.
local function lease(id, record)
  local format, _, archived, apart, keyless, changed, priority, attempts, run_at, ready_at, created_at, names_at =
    open(BASE, record)
  if format ~= 1 then
    error('LEASEHOLD a task of format ' .. tostring(format))
  end
  local attempt, token, version, rest = 0, 0, 1, nil
  if changed == 1 then
    local task = open_task(id, record)
    attempt, token, version = task.attempt, task.token, task.version
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
  record = pack(BASE, 1, RUNNING, archived, apart, keyless, 1, priority, attempts, run_at, ready_at, created_at)
    .. pack(CHANGED, attempt + 1, token, version + 1, now, now, ends, 0, #worker, worker) .. rest
  gather(written, id, record)
  gather(runs, ends, id)
  leased[#leased + 1] = id
  leased[#leased + 1] = record
  leased[#leased + 1] = apart == 1 and call('HGET', base .. 'payload', id) or ''
end

for at, id in ipairs(ids) do
  if records[at] then
    lease(id, records[at])
  end
end

local next_due = ''
if #leased < 3 * max then
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
  for at = 8, #ARGV do
    call('ZADD', base .. 'w:' .. ARGV[at], 'NX', now, own)
  end
end
return { left, now, next_due, leased }
