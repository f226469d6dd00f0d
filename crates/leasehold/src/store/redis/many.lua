-- Several operations on several locks, each on its own: what their callers would else have sent one by one. Only the short
-- ways; whatever is not so simple gets no answer here and changes nothing, and its caller asks `apply.lua`.
--
-- KEYS: for each operation its lock's record; then for each the names, when to sweep which, the events and the floor of its
--       bucket.
-- ARGV: the time (empty: the server's own), how many events to keep, then for each: the operation, the lock's name, and the
--       first three things that it needs.

local pack, open, call = struct.pack, struct.unpack, redis.call
local now, max_events = tonumber(ARGV[1]), ARGV[2]
if not now then
  local time = call('TIME')
  now = time[1] * 1000000 + time[2]
end
local count = #KEYS / 5
if count == 0 then
  return {} -- So that the server learns this script.
end
local records, seen = call('MGET', unpack(KEYS, 1, count)), {}

local function apply(at)
  local record, stored = KEYS[at], records[at]
  -- What is no text seems not to be there; it is not ours. The second of one lock would see what was before the first.
  local is_ours = not stored or string.byte(stored) == 1 or string.byte(stored) == 2
  if seen[record] or not is_ours or (not stored and call('GET', record)) then
    return false
  end
  seen[record] = true
  local keys, args = count + at * 4 - 3, at * 5 - 2
  local names, due_index, events, floor = KEYS[keys], KEYS[keys + 1], KEYS[keys + 2], KEYS[keys + 3]
  local op, name, one, two, three = ARGV[args], ARGV[args + 1], ARGV[args + 2], ARGV[args + 3], ARGV[args + 4]
  -- ways.lua
  return answer or false
end

-- What goes wrong with one is nothing to the others.
local answers = {}
for at = 1, count do
  local good, answer = pcall(apply, at)
  answers[at] = good and answer
end
return answers
