#!lua
-- Appends records to a journal for the newest lease, and perhaps ends the sample; the last sibling to finish completes
-- its group, or filters it when all rewards are equal and the rules ask for that. Each key is read once and written
-- once: every call costs the server a microsecond, and its arguments are bytes of the append-only file.
-- Keys: run, sample:*, journal:*, blob:*, blobs:*, image:*, images, pictured:*, group:*, held:*, queue, resume, live,
--       ready, outcomes.
-- ARGV: sample, lease, nonce, position, complete turns, response tokens, generated tokens, bytes, status, stop reason,
--       reward, number of images, the images' names, then the records, large ones as their blobs' names. An empty status
--       leaves the sample open.
local sample, position, status = ARGV[1], tonumber(ARGV[4]), ARGV[9]
local first = 13 + tonumber(ARGV[12])
local key, group, records = key_sample(sample), group_of(sample), #ARGV - first + 1
local known = redis.call('HMGET', key, 'lease', 'nonce', 'state', 'holder', 'totals')
local lease, nonce, state, holder, has = known[1], known[2], known[3], known[4], parsed_totals(known[5])

local function refused()
  count('refused_commits')
  return {'lease_lost'}
end

if lease ~= ARGV[2] or nonce ~= ARGV[3] then return refused() end
local length = tonumber(has.records)
if state == 'finished' and status ~= '' and length == position + records then return {'ok'} end
if state ~= 'leased' then return refused() end

-- Blobs and images were written before this call, and expire unless it names them. Which of them are not there?
local blobs = {}
local function absent()
  for place = first, #ARGV do
    if string.byte(ARGV[place]) == 64 then
      local name, size = string.match(ARGV[place], '^@(.+):(%d+)$')
      if redis.call('STRLEN', key_blob(sample .. ':' .. name)) ~= tonumber(size) then return {'unstored'} end
      blobs[#blobs + 1] = name
    end
  end
  local missing = {'no_image'}
  for place = 13, first - 1 do
    if redis.call('EXISTS', key_image(ARGV[place])) == 0 then missing[#missing + 1] = ARGV[place] end
  end
  return #missing > 1 and missing or nil
end

local function keep_named()
  for place = 13, first - 1 do
    if redis.call('SADD', key_pictured(group), ARGV[place]) == 1 then
      redis.call('HINCRBY', key_images, ARGV[place], 1)
      redis.call('PERSIST', key_image(ARGV[place]))
    end
  end
  for _, name in ipairs(blobs) do
    redis.call('PERSIST', key_blob(sample .. ':' .. name))
    redis.call('SADD', key_blobs(sample), name)
  end
end

-- What the call changes in the run's hash and in the sample's: field, value, field, value, ...
local of_run, of_sample = {}, {}
local function set(fields, name, value)
  fields[#fields + 1] = name
  fields[#fields + 1] = value
end

local function write()
  if #of_sample > 0 then redis.call('HSET', key, unpack(of_sample)) end
  if #of_run > 0 then redis.call('HSET', key_run, unpack(of_run)) end
  return {'ok'}
end

local run = fields_of(key_run, 'journal_bytes', 'committed_turns', 'outcomes', 'group_size', 'filter_zero_variance')
if length == position then
  local missing = absent()
  if missing then return missing end
  keep_named()
  if records > 0 then
    redis.call('RPUSH', key_journal(sample), unpack(ARGV, first))
    has.records = length + records
    for place, name in ipairs({'turns', 'response', 'generated', 'bytes'}) do
      has[name] = has[name] + ARGV[4 + place]
    end
    set(of_sample, 'totals', totals_text(has))
    set(of_run, 'journal_bytes', int(run.journal_bytes + ARGV[8]))
    set(of_run, 'committed_turns', int(run.committed_turns + ARGV[5]))
  end
elseif length ~= position + records or redis.call('LINDEX', key_journal(sample), -1) ~= ARGV[#ARGV] then
  return {'mismatch', length}
end
if status == '' then return write() end

local function rewards_are_equal()
  local names = {}
  for index = 0, run.group_size - 1 do names[#names + 1] = 'reward:' .. index end
  local rewards = redis.call('HMGET', key_group(group), unpack(names))
  for _, reward in ipairs(rewards) do
    if tonumber(reward) ~= tonumber(rewards[1]) then return false end
  end
  return true
end

local function complete(v0)
  if run.filter_zero_variance == '1' and rewards_are_equal() then
    redis.call('ZREM', key_live, group)
    forget_group(group)
    count('filtered')
    count('untrainable')
  else
    redis.call('HSET', key_group(group), 'state', 'complete')
    redis.call('ZADD', key_ready, v0, group)
    redis.call('HSET', key_run, 'untrainable', 0)
  end
end

local of_group = fields_of(key_group(group), 'v0', 'finished', 'state')
redis.call('SREM', key_held(holder), sample)
for place, name in ipairs({'status', 'stop_reason', 'reward'}) do set(of_sample, name, ARGV[8 + place]) end
set(of_sample, 'state', 'finished')
set(of_run, 'outcomes', int(run.outcomes + 1))
write()
redis.call('HSET', key_group(group), 'reward:' .. index_of(sample), ARGV[11], 'finished',
  int(of_group.finished + 1))
push_outcome(run.outcomes + 1, sample, 'finished', status, ARGV[10], ARGV[11], has, of_group.v0)
-- A trained group whose records were lost and played again is whole, and stays trained.
if of_group.finished + 1 == tonumber(run.group_size) and of_group.state == 'live' then complete(of_group.v0) end
return {'ok'}
