-- Small versioned documents: get, list, and put if the version is as expected.
--
-- KEYS: hash of all documents; their keys in order; their expiry times.
-- ARGV: time (empty: the server's clock), then 'get' and keys; or 'list', start, end and maximum
--       number; or 'put', key, expected version (empty: none), retention (empty: unlimited), body.
--
-- A document is its version, its expiry time (0: none) and the body.

local encode, decode, call = struct.pack, struct.unpack, redis.call
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
  local version, until_ = decode('>I8I8', stored)
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

local key, expected, keep_for, body = ARGV[3], tonumber(ARGV[4]), tonumber(ARGV[5]), ARGV[6]
local stored, version = get(key)
if version ~= expected then
  return { -1, stored or '' }
end
-- At least the time, so that a document never gets the version of a removed document with the same
-- key.
version = math.max((expected or 0) + 1, now)
call('HSET', KEYS[1], key, encode('>I8I8', version, keep_for and now + keep_for or 0) .. body)
call('ZADD', KEYS[2], 0, key)
if keep_for then
  call('ZADD', KEYS[3], now + keep_for, key)
else
  call('ZREM', KEYS[3], key)
end
-- Every write removes a few expired documents, so that they do not accumulate.
for _, expired in ipairs(call('ZRANGEBYSCORE', KEYS[3], '-inf', now, 'LIMIT', 0, 10)) do
  call('HDEL', KEYS[1], expired)
  call('ZREM', KEYS[2], expired)
  call('ZREM', KEYS[3], expired)
end
return { version, '' }
