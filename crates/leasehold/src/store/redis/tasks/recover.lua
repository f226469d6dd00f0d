-- Puts in line whatever is due, and forgets workers that have said nothing for long. Leases that have run out are ended
-- before this, by the rules.

note_all()
local queues = call('ZRANGEBYSCORE', DUE, '-inf', now, 'LIMIT', 0, PROMOTE)
local promoted = promote(queues)
for _, queue in ipairs(queues) do
  renote_due(queue)
end
local gone = call('ZRANGEBYSCORE', base .. 'seen', '-inf', now - 3600000000, 'LIMIT', 0, 1000)
for _, worker in ipairs(gone) do
  call('HDEL', base .. 'workers', worker)
  call('ZREM', base .. 'seen', worker)
end
return { bells(), promoted }
