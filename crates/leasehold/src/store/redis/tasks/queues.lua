-- Lists the queues with their counts; or pauses or resumes one queue.
-- ARGV: 'list', and the maximum number of queues whose counts are returned with the names of all; or 'counts',
--       and the queues whose counts are returned; or 'pause', queue and pause (empty: resume).

local action = ARGV[4]
if action == 'pause' then
  local queue, pause = ARGV[5], ARGV[6]
  if call('SISMEMBER', base .. 'queues', queue) == 0 then
    return { {}, 0 }
  end
  if pause ~= '' then
    call('HSET', base .. 'q:' .. queue, 'pause', pause)
  else
    call('HDEL', base .. 'q:' .. queue, 'pause')
    newly_ready[queue] = call('ZCARD', base .. 'r:' .. queue)
  end
  return { flush_and_notify(), 1 }
end

local names, queues, counts = {}, { unpack(ARGV, 5) }, {}
if action == 'list' then
  names = call('SMEMBERS', base .. 'queues')
  queues = { unpack(names, 1, math.min(#names, tonumber(ARGV[5]))) }
end
for at, queue in ipairs(queues) do
  counts[at] = call('HGETALL', base .. 'q:' .. queue)
end
return { {}, names, counts }
