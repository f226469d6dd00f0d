-- The events of one bucket, and the time at which they were read: an event that is written later has no earlier id.
--
-- KEYS: the bucket's events.
-- ARGV: XRANGE or XREVRANGE, from, to, how many at most.

local time = redis.call('TIME')
local milliseconds = time[1] * 1000 + math.floor(time[2] / 1000)
return { milliseconds, redis.call(ARGV[1], KEYS[1], ARGV[2], ARGV[3], 'COUNT', ARGV[4]) }
