-- Reads tasks.
-- ARGV: 'by_id' and ids; or 'by_key', queue and key; or 'expired' and maximum number, for tasks
--       whose lease has expired; or 'newest', id before which the tasks must be (empty: any) and
--       maximum number. Or 'ids_by_state', state, queue (empty: any), whether archived tasks count,
--       too ('1'), and maximum number: returns only the ids, unordered, or 'too_many'.

local selector, ids = ARGV[4], {}
if selector == 'ids_by_state' then
  local state, keys, total = tonumber(ARGV[5]), {}, 0
  for _, queue in ipairs(ARGV[6] ~= '' and { ARGV[6] } or call('SMEMBERS', base .. 'queues')) do
    if state == SCHEDULED or state == PENDING then
      keys[#keys + 1] = base .. (state == PENDING and 'r:' or 's:') .. queue
    else
      for archived = 0, tonumber(ARGV[7]) do
        keys[#keys + 1] = finished_key(archived, state, queue)
      end
    end
  end
  for _, key in ipairs(state == RUNNING and { DEADLINES } or keys) do
    total = total + call('ZCARD', key)
    if total > tonumber(ARGV[8]) then
      return { now, 'too_many' }
    end
    for _, member in ipairs(call('ZRANGE', key, 0, -1)) do
      ids[#ids + 1] = string.sub(member, -16)
    end
  end
  return { now, ids }
end

if selector == 'by_id' then
  for at = 5, #ARGV do
    ids[#ids + 1] = ARGV[at]
  end
elseif selector == 'by_key' then
  ids[1] = call('HGET', base .. 'k:' .. ARGV[5], ARGV[6]) or nil
elseif selector == 'expired' then
  ids = call('ZRANGEBYSCORE', DEADLINES, '-inf', now, 'LIMIT', 0, ARGV[5])
elseif selector == 'newest' then
  local from = ARGV[5] == '' and '+' or '(' .. ARGV[5]
  ids = call('ZREVRANGEBYLEX', base .. 'ids', from, '-', 'LIMIT', 0, ARGV[6])
end

-- Stops when the reply is large, but returns at least one task. Also returns the number of examined
-- ids.
local found, examined, bytes = {}, 0, 0
for at, id in ipairs(ids) do
  if bytes >= CHUNK_BYTES then
    break
  end
  examined = at
  local record = call('HGET', TASKS, id)
  if record then
    found[#found + 1] = id
    found[#found + 1] = record
    found[#found + 1] = string.byte(record, 4) == 1 and call('HGET', base .. 'payload', id) or ''
    bytes = bytes + #record + #found[#found]
  elseif selector == 'expired' then
    call('ZREM', DEADLINES, id) -- The server has lost the record: its id must not hide later ones.
  end
end
return { now, found, examined, #ids }
