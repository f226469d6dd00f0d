-- Batch of independent operations on several locks, which their callers would otherwise have sent
-- one by one. Only the fast path: any other operation gets no answer here and changes nothing, and
-- its caller sends it alone (`apply.lua`).
--
-- KEYS: for each operation the record of its lock. The other keys of its bucket have the same
--       beginning; batches are not sent to a Cluster.
-- ARGV: time (empty: the server's clock), then for each operation its name, the name of the lock and
--       the first three arguments.

local encode, decode, call = struct.pack, struct.unpack, redis.call
local time = call('TIME')
local stamp = time[1] * 1000000 + time[2]
local now = tonumber(ARGV[1]) or stamp
local count = #KEYS
if count == 0 then
  return {} -- Called without operations to load the script.
end
local records, seen = call('MGET', unpack(KEYS)), {}

local function apply(at)
  local record, stored, args = KEYS[at], records[at], at * 5 - 3
  local op, name, arg1, arg2, arg3 = ARGV[args], ARGV[args + 1], ARGV[args + 2], ARGV[args + 3], ARGV[args + 4]
  -- MGET returns nothing for a key that is not a string; such a key belongs to another program. A
  -- second operation on the same lock would see the record from before the first.
  local is_ours = not stored or string.byte(stored) == 2
  if seen[record] or not is_ours or (not stored and call('GET', record)) then
    return false
  end
  seen[record] = true
  local base = string.sub(record, 1, -6 - #name)
  -- fast_path.lua
  return answer or false
end

-- An error of one operation does not affect the others.
local answers = {}
for at = 1, count do
  local good, answer = pcall(apply, at)
  answers[at] = good and answer
end
return answers
