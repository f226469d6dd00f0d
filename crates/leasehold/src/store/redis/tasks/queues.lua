-- The queues with their counts; or a pause for one of them, or the end of it.
-- ARGV: nothing; or the queue and the pause, empty for its end.

if ARGV[4] then
  local queue, pause = ARGV[4], ARGV[5]
  if call('SISMEMBER', base .. 'queues', queue) == 0 then
    return { {}, 0 }
  end
  if pause ~= '' then
    call('HSET', base .. 'q:' .. queue, 'pause', pause)
  else
    call('HDEL', base .. 'q:' .. queue, 'pause')
    woken[queue] = call('ZCARD', base .. 'r:' .. queue)
  end
  return { bells(), 1 }
end

local found = {}
for _, queue in ipairs(call('SMEMBERS', base .. 'queues')) do
  found[#found + 1] = queue
  found[#found + 1] = call('HGETALL', base .. 'q:' .. queue)
end
return { {}, found }
