-- Forget events through an ID; that they are forgotten is said in the same step.
-- KEYS: events, info, units. ARGV: stream ID, trimmed_through as it is known, the new one.
-- Answers 1, or 0 when somebody else has trimmed meanwhile.
local known = redis.call('HMGET', KEYS[2], 'stream_id', 'trimmed_through')
if known[1] ~= ARGV[1] or known[2] ~= ARGV[2] then
  return 0
end
redis.call('HSET', KEYS[2], 'trimmed_through', ARGV[3])
-- Entries have sequence number 0: below n-1 lies everything through event n.
redis.call('XTRIM', KEYS[1], 'MINID', '=', ARGV[3] .. '-1')
redis.call('ZREMRANGEBYSCORE', KEYS[3], '-inf', ARGV[3])
return 1
