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

-- The first of all these queues: they are one line.
local function take()
  if #queues == 1 then
    local popped, members = call('ZPOPMIN', base .. 'r:' .. queues[1], max), {}
    for at = 1, #popped, 2 do
      members[#members + 1] = popped[at]
    end
    return members
  end
  local found = {}
  for _, queue in ipairs(queues) do
    local first = call('ZRANGE', base .. 'r:' .. queue, 0, max - 1, 'WITHSCORES')
    for at = 1, #first, 2 do
      found[#found + 1] = { member = first[at], rank = tonumber(first[at + 1]), queue = queue }
    end
  end
  table.sort(found, function(one, other)
    if one.rank ~= other.rank then
      return one.rank < other.rank
    end
    return is_before(one.member, other.member)
  end)
  local members = {}
  for at = 1, math.min(max, #found) do
    members[at] = found[at].member
    call('ZREM', base .. 'r:' .. found[at].queue, found[at].member)
  end
  return members
end

local leased = {}
for _, member in ipairs(take()) do
  local task = load(string.sub(member, 9))
  if task then
    count(task.queue, PENDING, -1)
    count(task.queue, RUNNING, 1)
    if woken[task.queue] then
      woken[task.queue] = woken[task.queue] - 1
    end
    task.state, task.attempt, task.token, task.version = RUNNING, task.attempt + 1, next_token(task), task.version + 1
    task.worker, task.leased_at, task.lease_end, task.updated_at = worker, now, now + ttl, now
    said(task)[PROGRESS] = ''
    local record = close_task(task)
    call('HSET', TASKS, task.id, record)
    call('ZADD', RUNS, task.lease_end, task.id)
    leased[#leased + 1] = task.id
    leased[#leased + 1] = record
    leased[#leased + 1] = task.apart == 1 and call('HGET', base .. 'payload', task.id) or ''
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
