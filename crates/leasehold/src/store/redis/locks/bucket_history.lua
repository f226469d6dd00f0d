-- Reads events of one bucket, and the time of the read: an event that is written later has no
-- earlier id.
--
-- KEYS: events of the bucket.
-- ARGV: XRANGE or XREVRANGE, start, end, maximum number of events.

local time = redis.call('TIME')
local milliseconds = time[1] * 1000 + math.floor(time[2] / 1000)
return { milliseconds, redis.call(ARGV[1], KEYS[1], ARGV[2], ARGV[3], 'COUNT', ARGV[4]) }
