-- Elects the heads of chains for which another script gave up, promotes due tasks, and removes workers
-- without a heartbeat for `WORKER_LISTED_FOR`. The caller has ended expired leases before, by the slow path.

for _, chain in ipairs(call('ZRANGE', UNELECTED, 0, 99)) do
  call('ZREM', UNELECTED, chain)
  local length, lock_at = string.match(chain, '^(%d+):()')
  local queue_at = lock_at + tonumber(length) + 1
  elect(string.sub(chain, lock_at, queue_at - 2), string.sub(chain, queue_at))
end
local queues, earliest = queues_between(DUE, '-inf', now, 0, MAX_PROMOTED)
local promoted, examined = promote(queues, earliest)
for at = 1, examined do
  refresh_due(queues[at])
end
local stale = call('ZRANGEBYSCORE', base .. 'seen', '-inf', now - WORKER_LISTED_FOR, 'LIMIT', 0, 1000)
for _, worker in ipairs(stale) do
  call('HDEL', base .. 'workers', worker)
  call('ZREM', base .. 'seen', worker)
end
return { flush_and_notify(), promoted }
