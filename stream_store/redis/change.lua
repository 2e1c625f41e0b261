-- Set fields of the info hash if others have the values that they are expected to have.
-- KEYS: events, info. ARGV: how many expectations; field and value of each; then fields and values to set.
-- An expected '' is a field that is not there. Answers 1, or 0 when an expectation fails.
local expected = tonumber(ARGV[1])
for at = 2, 2 * expected, 2 do
  if (redis.call('HGET', KEYS[2], ARGV[at]) or '') ~= ARGV[at + 1] then
    return 0
  end
end
if redis.call('EXISTS', KEYS[1]) == 0 then
  redis.call('XGROUP', 'CREATE', KEYS[1], 'outbox', '$', 'MKSTREAM')
  redis.call('XGROUP', 'DESTROY', KEYS[1], 'outbox')
end
redis.call('HSET', KEYS[2], unpack(ARGV, 2 * expected + 2))
return 1
