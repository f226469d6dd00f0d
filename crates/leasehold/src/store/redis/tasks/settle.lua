-- Settles successful attempts, like `TaskOp::Settle` of the model.
-- ARGV: for each attempt the task, the token and the result.

local ids, settled = {}, {}
for at = 4, #ARGV, 3 do
  ids[#ids + 1] = ARGV[at]
end
local records = call('HMGET', TASKS, unpack(ids))
local QUEUE_AT = HEAD_SIZE + SCHEDULE_SIZE + 1
local written, deadlines, now_text = { 'HSET', TASKS }, { 'ZREM', DEADLINES }, string.format('%.0f', now)

-- Returns what the settlement of any task with this head needs: the state, the token as text, and the
-- head of the settled task. `false` if the whole record must be decoded.
local plans = {}
local function make_plan(head)
  local _, state, archived, external_payload, keyless, _, has_extras, has_lock, has_worker, attempts, attempt,
    expiries, token, version, _, leased_at, _, _, _, worker = decode(HEAD, head)
  if has_extras == 1 or has_lock == 1 then
    return false
  end
  return {
    state = state,
    token = string.format('%.0f', token),
    head = encode(HEAD, FORMAT, SUCCEEDED, archived, external_payload, keyless, 0, 0, 0, has_worker, attempts, attempt,
      expiries, token, version + 1, now, leased_at, 0, now, 0, worker),
  }
end

local function plan_of(record)
  if check_format(record) ~= FORMAT then
    return false
  end
  local head = string.sub(record, 1, HEAD_SIZE)
  local plan = plans[head]
  if plan == nil then
    plan = make_plan(head)
    plans[head] = plan
  end
  return plan
end

local function encode_settled(task, result)
  task.token = tonumber(task.token)
  task.state, task.begun, task.lease_expires_at, task.finished_at, task.runner_deadline = SUCCEEDED, 0, 0, now, 0
  task.version, task.updated_at = task.version + 1, now
  if result ~= '' or task.extras_at <= #task.record then
    extras(task)[RESULT] = result
    extras(task)[ERROR] = ''
  end
  return encode_task(task)
end

local tasks, finished, settled_of, done, settled_count = {}, {}, {}, {}, 0
for at, id in ipairs(ids) do
  local record = records[at]
  local plan = record and plan_of(record)
  if plan and ARGV[3 * at + 3] == '' then
    tasks[at] = plan
  elseif record then
    tasks[at] = decode_task(id, record)
    tasks[at].token = string.format('%.0f', tasks[at].token)
  else
    tasks[at] = false
  end
end

for at, task in ipairs(tasks) do
  local id, token, result, record = ids[at], ARGV[3 * at + 2], ARGV[3 * at + 3], records[at]
  if not task or task.token ~= token then
    settled[at] = -1
  elseif task.state ~= RUNNING or done[id] then
    -- Repeated call, settled before: only the settlement by its worker leaves a task with the token
    -- of its lease.
    settled[at] = done[id] or task.state
  else
    settled[at], done[id] = SUCCEEDED, SUCCEEDED
    local queue
    if task.head then
      record, queue = task.head .. string.sub(record, HEAD_SIZE + 1), decode('>Bc0', record, QUEUE_AT)
    else
      record, queue = encode_settled(task, result), task.queue
    end
    settled_count = settled_count + 1
    written[2 * settled_count + 1], written[2 * settled_count + 2] = id, record
    deadlines[settled_count + 2] = id
    local members = finished[queue]
    if not members then
      members = { 'ZADD', finished_key(0, SUCCEEDED, queue) }
      finished[queue] = members
    end
    local length = #members
    members[length + 1], members[length + 2] = now_text, id
    settled_of[queue] = (settled_of[queue] or 0) + 1
    if task.lock and task.lock ~= '' then
      call('HDEL', HEADS, chain_of(task.lock, queue))
      elect(task.lock, queue)
    end
  end
end
if settled_count > 0 then
  call(unpack(written))
  call(unpack(deadlines))
end
for _, members in pairs(finished) do
  call(unpack(members))
end
for queue, tasks in pairs(settled_of) do
  index_finished(queue, now)
  count(queue, RUNNING, -tasks)
  count(queue, SUCCEEDED, tasks)
end
return { flush_and_notify(), settled }
