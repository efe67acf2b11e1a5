#!lua
-- Appends records to a journal for the newest lease, and perhaps ends the sample; the last sibling to finish completes
-- its group, or filters it when all rewards are equal and the rules ask for that.
-- Keys: run, sample:*, journal:*, blob:*, blobs:*, image:*, images, pictured:*, group:*, held:*, live, ready, outcomes.
-- ARGV: sample, lease, nonce, position, complete turns, response tokens, generated tokens, bytes, status, stop reason,
--       reward, number of images, the images' names, then the records, large ones as their blobs' names. An empty status
--       leaves the sample open.
local sample, position, status = ARGV[1], tonumber(ARGV[4]), ARGV[9]
local first = 13 + tonumber(ARGV[12])
local key, records = key_sample(sample), #ARGV - first + 1

-- The blob's name and its bytes, of a record that stands beside the journal.
local function blob_of(record)
  if string.byte(record) ~= 64 then return nil end
  local name, size = string.match(record, '^@(.+):(%d+)$')
  return name, tonumber(size)
end

local function refused()
  count('refused_commits')
  return {'lease_lost'}
end

if not holds(sample, ARGV[2], ARGV[3]) then return refused() end
local state, length = state_of(sample), number_of(key, 'records')
if state == 'finished' and status ~= '' and length == position + records then return {'ok'} end
if state ~= 'leased' then return refused() end

-- Blobs and images were written before this call, and expire unless it names them. Which of them are not there?
local function absent()
  for place = first, #ARGV do
    local name, size = blob_of(ARGV[place])
    if name and redis.call('STRLEN', key_blob(sample .. ':' .. name)) ~= size then return {'unstored'} end
  end
  local missing = {'no_image'}
  for place = 13, first - 1 do
    if redis.call('EXISTS', key_image(ARGV[place])) == 0 then missing[#missing + 1] = ARGV[place] end
  end
  return #missing > 1 and missing or nil
end

local function append()
  for place = 13, first - 1 do
    if redis.call('SADD', key_pictured(group_of(sample)), ARGV[place]) == 1 then
      redis.call('HINCRBY', key_images, ARGV[place], 1)
      redis.call('PERSIST', key_image(ARGV[place]))
    end
  end
  for place = first, #ARGV do
    redis.call('RPUSH', key_journal(sample), ARGV[place])
    local name = blob_of(ARGV[place])
    if name then
      redis.call('PERSIST', key_blob(sample .. ':' .. name))
      redis.call('SADD', key_blobs(sample), name)
    end
  end
  redis.call('HINCRBY', key, 'records', records)
  redis.call('HINCRBY', key, 'turns', ARGV[5])
  redis.call('HINCRBY', key, 'response', ARGV[6])
  redis.call('HINCRBY', key, 'generated', ARGV[7])
  redis.call('HINCRBY', key, 'bytes', ARGV[8])
  count('journal_bytes', ARGV[8])
  count('committed_turns', ARGV[5])
end

if length == position then
  local missing = absent()
  if missing then return missing end
  append()
elseif length ~= position + records or redis.call('LINDEX', key_journal(sample), -1) ~= ARGV[#ARGV] then
  return {'mismatch', length}
end
if status == '' then return {'ok'} end

local function complete(group)
  local size, lowest, highest = rule('group_size'), math.huge, -math.huge
  for index = 0, size - 1 do
    local reward = number_of(key_group(group), 'reward:' .. index)
    lowest, highest = math.min(lowest, reward), math.max(highest, reward)
  end
  if lowest == highest and rule('filter_zero_variance') == 1 then
    redis.call('ZREM', key_live, group)
    forget_group(group)
    count('filtered')
    count('untrainable')
  else
    redis.call('HSET', key_group(group), 'state', 'complete')
    redis.call('ZADD', key_ready, redis.call('HGET', key_group(group), 'v0'), group)
    redis.call('HSET', key_run, 'untrainable', 0)
  end
end

local group = group_of(sample)
unhold(sample)
redis.call('HSET', key, 'state', 'finished', 'status', status, 'stop_reason', ARGV[10], 'reward', ARGV[11])
redis.call('HSET', key_group(group), 'reward:' .. index_of(sample), ARGV[11])
record_outcome(sample, 'finished', status, ARGV[10], ARGV[11])
if redis.call('HINCRBY', key_group(group), 'finished', 1) == rule('group_size') then complete(group) end
return {'ok'}
