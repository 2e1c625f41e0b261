-- Append events if the stream ends where they follow. IDs are compared as text: Lua's numbers have 53 bits.
-- KEYS: events, info, units.
-- ARGV: stream ID, prev_id, last ID, latest time, bytes, rows, rows of a unit, bytes of a unit;
--       token of this append, token that must have appended last ('' for the first part of a batch);
--       then for each event how many words follow, its entry ID, and fields and values.
-- Answers {1}; {0, tail, trimmed_through}; or {-1, stream ID} when it is another stream.
local known = redis.call('HMGET', KEYS[2], 'stream_id', 'tail', 'trimmed_through', 'time_max', 'unit_rows', 'unit_bytes',
  'appending')
if known[1] ~= ARGV[1] then
  return {-1, known[1] or ''}
end
-- A key that is gone (deleted, evicted) has taken its events with it.
local tail = redis.call('EXISTS', KEYS[1]) == 1 and known[2] or '0'
-- The rest of a batch follows its own beginning only: behind somebody else's events with the same IDs it would
-- join two histories.
if tail ~= ARGV[2] or (ARGV[10] ~= '' and known[7] ~= ARGV[10]) then
  return {0, tail, known[3]}
end
local at, last = 11, #ARGV
while at <= last do
  local words = tonumber(ARGV[at])
  -- Only the first can fail (an ID at or below the top): nothing is written then.
  redis.call('XADD', KEYS[1], unpack(ARGV, at + 1, at + words))
  at = at + words + 1
end
local time_max = ARGV[4]
if known[4] and tonumber(known[4]) > tonumber(time_max) then
  time_max = known[4]
end
local rows = tonumber(known[5] or '0') + tonumber(ARGV[6])
local bytes = tonumber(known[6] or '0') + tonumber(ARGV[5])
if rows >= tonumber(ARGV[7]) or bytes >= tonumber(ARGV[8]) then
  -- A unit ends here: its last ID, its size, and the latest time of all events through it.
  redis.call('ZADD', KEYS[3], ARGV[3], ARGV[3] .. ':' .. string.format('%d', bytes) .. ':' .. time_max)
  rows, bytes = 0, 0
end
redis.call('HSET', KEYS[2], 'tail', ARGV[3], 'appending', ARGV[9], 'time_max', time_max,
  'unit_rows', string.format('%d', rows), 'unit_bytes', string.format('%d', bytes))
return {1}
