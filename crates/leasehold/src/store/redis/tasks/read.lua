-- Reads tasks.
-- ARGV: which: 'these' and their ids; 'key', a queue and a key; 'expired' and how many at most, those whose lease has run
--       out; 'newest', before which id (empty: any) and how many, of all; 'in', a list, and how many at most.

local which, ids, total = ARGV[4], {}, 0
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

local found = {}
for _, id in ipairs(ids) do
  local record = call('HGET', TASKS, id)
  if record then
    found[#found + 1] = id
    found[#found + 1] = record
    found[#found + 1] = string.byte(record, 4) == 1 and call('HGET', base .. 'payload', id) or ''
  end
end
return { now, found }
