-- Enqueues plain tasks, all of them in one step: due now, without key, lock and runner, and with a
-- small payload. Does the same as `enqueue.lua`, which handles all other tasks, without anything that
-- they do not need.
-- ARGV: for each group of tasks its queue, priority, maximum number of attempts and number of tasks,
--       then for each task of the group its id and the static part of its record.
-- Returns for each group the number of tasks for which the caller notifies its own workers.

local run_at, shares = encode('>I8', now), {}
local at, groups = 4, 0
while at <= #ARGV do
  local queue, priority, count = ARGV[at], tonumber(ARGV[at + 1]), tonumber(ARGV[at + 3])
  local head = encode(HEAD, FORMAT, PENDING, 0, 0, 0, 0, 0, 0, 0, ARGV[at + 2], 0, 0, 0, 1, 0, 0, 0, 0, 0, NO_WORKER)
    .. encode(SCHEDULE, priority, run_at, now, now)
  local rank = string.format('%.0f', now - PRIORITY_STEP * priority)
  local first, added = at + 4, 0
  at = first + 2 * count
  if count == 1 then
    local id = ARGV[first]
    added = call('HSETNX', TASKS, id, head .. ARGV[first + 1])
    if added == 1 then
      call('ZADD', base .. 'ids', '0', id)
      call('ZADD', base .. 'r:' .. queue, rank, run_at .. id)
    end
  else
    -- A chunk has so few tasks that the arguments of a command fit on the stack.
    for from = first, at - 1, 1000 do
      local wanted, to = {}, math.min(from + 998, at - 2)
      for id_at = from, to, 2 do
        wanted[#wanted + 1] = ARGV[id_at]
      end
      local existing, seen = call('HMGET', TASKS, unpack(wanted)), {}
      local records, ids, ready, length = {}, {}, {}, 0
      for number, id in ipairs(wanted) do
        if not existing[number] and not seen[id] then
          seen[id] = true
          records[length + 1], records[length + 2] = id, head .. ARGV[from + 2 * number - 1]
          ids[length + 1], ids[length + 2] = '0', id
          ready[length + 1], ready[length + 2] = rank, run_at .. id
          length = length + 2
        end
      end
      if length > 0 then
        call('HSET', TASKS, unpack(records))
        call('ZADD', base .. 'ids', unpack(ids))
        call('ZADD', base .. 'r:' .. queue, unpack(ready))
        added = added + length / 2
      end
    end
  end
  groups = groups + 1
  shares[groups] = 0
  if added > 0 then
    -- A queue whose only pending tasks are these may be new.
    if call('HINCRBY', base .. 'q:' .. queue, PENDING, added) <= added then
      call('SADD', base .. 'queues', queue)
    end
    shares[groups] = notify_stores(queue, added)
  end
end
return shares
