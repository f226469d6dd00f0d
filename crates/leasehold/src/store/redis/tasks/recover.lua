-- Promotes due tasks, and removes workers without a heartbeat for `WORKER_REMEMBERED`. The
-- caller has ended expired leases before, by the slow path.

local queues = call('ZRANGEBYSCORE', DUE, '-inf', now, 'LIMIT', 0, MAX_PROMOTED)
local promoted = promote(queues)
for _, queue in ipairs(queues) do
  refresh_due(queue)
end
local stale = call('ZRANGEBYSCORE', base .. 'seen', '-inf', now - WORKER_REMEMBERED, 'LIMIT', 0, 1000)
for _, worker in ipairs(stale) do
  call('HDEL', base .. 'workers', worker)
  call('ZREM', base .. 'seen', worker)
end
return { flush_and_notify(), promoted }
