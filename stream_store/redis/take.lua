-- Begin to erase content: from now on under this token, and what the one before has copied is given back.
-- KEYS: info, copy and chosen of the token before. ARGV: the token before ('' for none), the new one.
-- Answers 1, or 0 when it is another token by now.
if (redis.call('HGET', KEYS[1], 'erasing') or '') ~= ARGV[1] then
  return 0
end
redis.call('UNLINK', KEYS[2], KEYS[3])
redis.call('HSET', KEYS[1], 'erasing', ARGV[2])
return 1
