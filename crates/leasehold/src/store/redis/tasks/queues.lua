-- Lists the queues with their counts; or pauses or resumes one queue.
-- ARGV: nothing; or queue and pause (empty: resume).

if ARGV[4] then
  local queue, pause = ARGV[4], ARGV[5]
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

local found = {}
for _, queue in ipairs(call('SMEMBERS', base .. 'queues')) do
  found[#found + 1] = queue
  found[#found + 1] = call('HGETALL', base .. 'q:' .. queue)
end
return { {}, found }
