-- Reads tasks.
-- ARGV: which: 'these' and their ids; 'key', a queue and a key; 'expired' and how many at most, those whose lease has run
--       out; 'newest', before which id (empty: any) and how many, of all. Or 'ids', a state, a queue (empty: any), whether
--       those put away count too ('1'), and how many at most: only the ids, in no order, unless there are more.

local which, ids, FULL = ARGV[4], {}, 1048576
if which == 'ids' then
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
  for _, key in ipairs(state == RUNNING and { RUNS } or keys) do
    total = total + call('ZCARD', key)
    if total > tonumber(ARGV[8]) then
      return { now, 'many' }
    end
    for _, member in ipairs(call('ZRANGE', key, 0, -1)) do
      ids[#ids + 1] = string.sub(member, -16)
    end
  end
  return { now, ids }
end

if which == 'these' then
  for at = 5, #ARGV do
    ids[#ids + 1] = ARGV[at]
  end
elseif which == 'key' then
  ids[1] = call('HGET', base .. 'k:' .. ARGV[5], ARGV[6]) or nil
elseif which == 'expired' then
  ids = call('ZRANGEBYSCORE', RUNS, '-inf', now, 'LIMIT', 0, ARGV[5])
elseif which == 'newest' then
  local from = ARGV[5] == '' and '+' or '(' .. ARGV[5]
  ids = call('ZREVRANGEBYLEX', base .. 'ids', from, '-', 'LIMIT', 0, ARGV[6])
end

-- No more than fills an answer, but at least one; and how many were looked at for that.
local found, looked_at, bytes = {}, 0, 0
for at, id in ipairs(ids) do
  if bytes >= FULL then
    break
  end
  looked_at = at
  local record = call('HGET', TASKS, id)
  if record then
    found[#found + 1] = id
    found[#found + 1] = record
    found[#found + 1] = string.byte(record, 4) == 1 and call('HGET', base .. 'payload', id) or ''
    bytes = bytes + #record + #found[#found]
  end
end
return { now, found, looked_at, #ids }
