-- First part of all task scripts: the keys, the time, and notifications of other stores.
--
-- KEYS: hash of all tasks. All other keys have the same prefix, and so are on the same node of a
--       Cluster. There a second key never exists: with it, Redis runs no script while the slot moves.
-- ARGV: time (empty: the server's clock), notification channel of the calling store, command that
--       publishes to other stores, then the arguments of the script.
--
-- A record has three parts, in this order:
--   head    what a lease and a settlement change, with a fixed length: HEAD. Many tasks of one call
--           have the same head, so scripts compute what follows from a head once (`plans`)
--   body    priority and times (SCHEDULE), then what stays as it was when the task was enqueued
--           (STATIC): a lease and a settlement copy it without decoding it
--   extras  progress, result, error, cancellation and events (EXTRAS), if one of them is not empty
-- `updated_at` is 0 in a task that was never changed: it is the time of creation.
--
-- Numbers that are computed here stay below 2^53. `run_at` may be any time, so it stays encoded.
-- Binary texts are never compared with `<`, which would use the locale of the server. An error in
-- the middle of a script would leave half of its writes, so everything that may be unreadable is
-- read before the first write. A number that is passed to a command is formatted by a slow function,
-- so numbers that many commands need are converted once. The states of a task and the limits of the
-- model, such as `PRIORITY_STEP`, are defined by scripts.rs.

local encode, decode, call = struct.pack, struct.unpack, redis.call
local FORMAT = 2
local HEAD, HEAD_SIZE = '>BBBBBBBBBI4I4I4I8I8I8I8I8I8I8c16', 93
local SCHEDULE, SCHEDULE_SIZE = '>hc8I8I8', 26
local NO_WORKER = string.rep('\0', 16)

local TASKS, own_channel, publish_command = KEYS[1], ARGV[2], ARGV[3]
local base = string.sub(TASKS, 1, -6)
local now = tonumber(ARGV[1])
if not now then
  local time = call('TIME')
  now = time[1] * 1000000 + time[2]
end

-- Notifies stores whose workers wait for tasks of this queue, the longest waiting first, one store
-- for each task. A store that does not receive the message no longer exists; then the next one is
-- notified. Returns the number of tasks that remain for the workers of the calling store.
local function notify_stores(queue, tasks)
  local notified, waiting = 0, base .. 'w:' .. queue
  for _ = 1, 100 do
    if notified >= tasks then
      break
    end
    local channel = call('ZPOPMIN', waiting)[1]
    if not channel then
      break
    end
    if channel ~= own_channel then
      -- Not every user may publish, and an old Cluster cannot: then the workers poll.
      local receivers = redis.pcall(publish_command, channel, encode('>I4c0', tasks, queue))
      if type(receivers) == 'number' and receivers > 0 then
        notified = notified + 1
      end
    end
  end
  return tasks - notified
end
