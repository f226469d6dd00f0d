-- Small versioned documents: reading, listing, and writing if nothing has changed.
--
-- KEYS: the hash of all documents; their keys in order; until when they are worth keeping.
-- ARGV: the time (empty: the server's own), then what is asked: 'get' and keys; 'list', from, to and how many; 'put', the
--       key, the expected version (empty: none), for how long (empty: for ever), the body.
--
-- A document is its version, until when it is worth keeping (0: for ever), and the body.

local pack, open, call = struct.pack, struct.unpack, redis.call
local now = tonumber(ARGV[1])
if not now then
  local time = call('TIME')
  now = time[1] * 1000000 + time[2]
end

local function get(key)
  local stored = call('HGET', KEYS[1], key)
  if not stored then
    return nil
  end
  local version, until_ = open('>I8I8', stored)
  if until_ ~= 0 and until_ <= now then
    return nil
  end
  return stored, version
end

if ARGV[2] == 'get' then
  local found = {}
  for at = 3, #ARGV do
    found[#found + 1] = get(ARGV[at]) or ''
  end
  return found
end

if ARGV[2] == 'list' then
  local names = call('ZRANGEBYLEX', KEYS[2], ARGV[3], ARGV[4], 'LIMIT', 0, ARGV[5])
  local found = {}
  for _, key in ipairs(names) do
    found[#found + 1] = key
    found[#found + 1] = get(key) or ''
  end
  return found
end

local key, expected, keep, body = ARGV[3], tonumber(ARGV[4]), tonumber(ARGV[5]), ARGV[6]
local stored, version = get(key)
if version ~= expected then
  return { -1, stored or '' }
end
-- By the clock, so that a document which comes after one that is gone does not get its version.
version = math.max((expected or 0) + 1, now)
call('HSET', KEYS[1], key, pack('>I8I8', version, keep and now + keep or 0) .. body)
call('ZADD', KEYS[2], 0, key)
if keep then
  call('ZADD', KEYS[3], now + keep, key)
else
  call('ZREM', KEYS[3], key)
end
-- Every write clears away a few that are over, so they do not pile up.
for _, over in ipairs(call('ZRANGEBYSCORE', KEYS[3], '-inf', now, 'LIMIT', 0, 10)) do
  call('HDEL', KEYS[1], over)
  call('ZREM', KEYS[2], over)
  call('ZREM', KEYS[3], over)
end
return { version, '' }
