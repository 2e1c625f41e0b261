-- Copy some entries, those that were chosen without their content. When all are copied, the copy
-- takes the place of the stream, in the same step: nobody can have appended in between.
-- KEYS: events, info, and of this token: copy, chosen. ARGV: token, where to begin, how many, content type of an erased event.
-- Where to begin is '' to give up. Answers {1, the last entry copied} when there may be more, {0} when it is done,
-- {-1} when another has taken over, {-2} when the copy is not what it should be.
local ours = redis.call('HGET', KEYS[2], 'erasing') == ARGV[1]
if ARGV[2] == '' then
  redis.call('UNLINK', KEYS[3], KEYS[4])
  if ours then
    redis.call('HDEL', KEYS[2], 'erasing')
  end
  return {0}
end
if not ours then
  return {-1}
end
-- The copy holds the entry before this step, or is still to be made: else something of it was lost on the way.
if ARGV[2] == '-' then
  if redis.call('EXISTS', KEYS[3]) == 1 then
    return {-2}
  end
else
  local before = string.sub(ARGV[2], 2)
  local ends = redis.call('XRANGE', KEYS[3], before, '+', 'COUNT', 2)
  if #ends ~= 1 or ends[1][1] ~= before then
    return {-2}
  end
end
local gone = {data = true, data_bytes = true, headers = true, datacontenttype = true}
local entries = redis.call('XRANGE', KEYS[1], ARGV[2], '+', 'COUNT', ARGV[3])
for _, entry in ipairs(entries) do
  local fields = entry[2]
  if redis.call('SISMEMBER', KEYS[4], entry[1]) == 1 then
    local kept = {}
    for at = 1, #fields, 2 do
      if not gone[fields[at]] then
        kept[#kept + 1] = fields[at]
        kept[#kept + 1] = fields[at + 1]
      end
    end
    kept[#kept + 1] = 'datacontenttype'
    kept[#kept + 1] = ARGV[4]
    fields = kept
  end
  redis.call('XADD', KEYS[3], entry[1], unpack(fields))
end
if #entries == tonumber(ARGV[3]) then
  return {1, entries[#entries][1]}
end
if redis.call('EXISTS', KEYS[3]) == 1 then
  redis.call('XTRIM', KEYS[3], 'MINID', '=', redis.call('HGET', KEYS[2], 'trimmed_through') .. '-1')
  if redis.call('XLEN', KEYS[3]) ~= redis.call('XLEN', KEYS[1]) then
    return {-2}
  end
  redis.call('UNLINK', KEYS[1])
  redis.call('RENAME', KEYS[3], KEYS[1])
end
redis.call('UNLINK', KEYS[4])
redis.call('HDEL', KEYS[2], 'erasing')
-- The server's files still hold the old content: said until they are written anew.
redis.call('HSET', KEYS[2], 'unscrubbed', '1')
return {0}
