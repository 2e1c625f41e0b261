-- Make the stream unless it is there; answer its ID.
-- KEYS: events, info. ARGV: a new stream ID, format.
local stream_id = redis.call('HGET', KEYS[2], 'stream_id')
if stream_id then
  return stream_id
end
if redis.call('EXISTS', KEYS[1], KEYS[2]) > 0 then
  return ''
end
-- A stream without entries can only be made by making a group in it.
redis.call('XGROUP', 'CREATE', KEYS[1], 'outbox', '$', 'MKSTREAM')
redis.call('XGROUP', 'DESTROY', KEYS[1], 'outbox')
redis.call('HSET', KEYS[2], 'stream_id', ARGV[1], 'format', ARGV[2], 'tail', '0', 'trimmed_through', '0')
return ARGV[1]
