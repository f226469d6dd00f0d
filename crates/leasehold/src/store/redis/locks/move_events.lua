-- Moves recent events to the stream of blocks, which it shortens to a maximum number of blocks. Without
-- arguments it only returns the text of recent events, from which the client computes them.
-- ARGV: beginning of the text as it was read; its length; position of its last event; maximum number of
--       blocks; beginning of the next text.
-- Returns whether the events were moved (1). They were not if another client has moved them.

if not ARGV[1] then
  return recent_events()
end
local head, length = ARGV[1], tonumber(ARGV[2])
-- Events are only appended, so a text with the same beginning has the same events at the same places.
if redis.call('GETRANGE', KEYS[2], 0, BLOCK_HEAD_SIZE - 1) ~= head then
  return 0
end
local block = redis.call('GETRANGE', KEYS[2], 0, length - 1)
if #block < length then
  return 0 -- Lost in a failover.
end
local later = redis.call('GETRANGE', KEYS[2], length, -1)
local added = redis.pcall('XADD', KEYS[1], 'MAXLEN', '~', ARGV[4], ARGV[3], 'b', block)
if type(added) == 'table' and added.err then
  -- The stream has a later event, perhaps from a backup: from now on positions follow that one.
  redis.call('SET', KEYS[2], block_head() .. string.sub(block, BLOCK_HEAD_SIZE + 1) .. later)
  return 0
end
redis.call('SET', KEYS[2], ARGV[5] .. later)
return 1
