#!lua
-- Hands out work: samples of silent producers go back first, then the oldest returned samples are leased, then queued
-- ones, then new groups are admitted while admission is open. Asked again with the nonce of the holder's newest call,
-- it answers what it handed out then. Answers also how many samples the holder now has here, and the setting that kept
-- work back for want of room. Samples of admitted groups are never kept back for bytes: they are what makes room.
-- Keys: run, holders, terms, held:*, resume, queue, requeued, reasserted, requests, live, ready, serving, group:*,
--       sample:*.
-- ARGV: holder, nonce, count.
local holder, nonce, wanted = ARGV[1], ARGV[2], tonumber(ARGV[3])

local run, server = fields_of(key_run, 'state', 'heard_on', 'asserted_on', 'ledger_steps', 'group_size', 'admitted',
  'filtered', 'dead_lettered', 'total_groups', 'journal_bytes', 'max_journal_bytes', 'max_ready_groups',
  'max_leased_samples'), server_id()

-- While Redis was away nobody could be heard: after a restart every producer has a whole term to speak up.
if run.heard_on ~= server then
  for _, heard in ipairs(redis.call('ZRANGE', key_holders, 0, -1)) do
    redis.call('ZADD', key_holders, 'GT', now_ms() + number_of(key_terms, heard), heard)
  end
  redis.call('HSET', key_run, 'heard_on', server)
end

for _, silent in ipairs(redis.call('ZRANGEBYSCORE', key_holders, '-inf', now_ms())) do
  for _, sample in ipairs(redis.call('SMEMBERS', key_held(silent))) do give_back(sample, 'expired') end
  redis.call('ZREM', key_holders, silent)
  redis.call('HDEL', key_requests, silent)
  redis.call('HDEL', key_terms, silent)
end

local abouts = {}
local function row(sample, fields)
  local group = group_of(sample)
  abouts[group] = abouts[group] or redis.call('HMGET', key_group(group), 'prompt', 'v0')
  local has = parsed_totals(fields.totals)
  return {sample, fields.lease, abouts[group][1], abouts[group][2], has.records, has.bytes, fields.returned or ''}
end

local function about(sample)
  local found = redis.call('HMGET', key_sample(sample), 'lease', 'nonce', 'totals', 'returned')
  return {lease = found[1] or '0', nonce = found[2], totals = found[3], returned = found[4]}
end

local rows, full = {}, ''
local function answer() return {rows, redis.call('SCARD', key_held(holder)), full} end
if run.state ~= 'running' or not redis.call('ZSCORE', key_holders, holder) then
  return answer()
end
if redis.call('HGET', key_requests, holder) == nonce then
  for _, sample in ipairs(redis.call('SMEMBERS', key_held(holder))) do
    local fields = about(sample)
    if fields.nonce == nonce then rows[#rows + 1] = row(sample, fields) end
  end
  return answer()
end
redis.call('HSET', key_requests, holder, nonce)

local room = tonumber(run.max_leased_samples)
for _, any in ipairs(redis.call('ZRANGE', key_holders, 0, -1)) do room = room - redis.call('SCARD', key_held(any)) end
if room < wanted then wanted, full = math.max(room, 0), 'buffer.max_leased_samples' end

local function hand_out(queue)
  local handed = {}
  local popped = redis.call('ZPOPMIN', queue, wanted - #rows)
  for place = 1, #popped, 2 do
    local sample, fields = popped[place], about(popped[place])
    fields.lease = tostring(fields.lease + 1)
    redis.call('HSET', key_sample(sample), 'state', 'leased', 'nonce', nonce, 'holder', holder, 'lease', fields.lease)
    handed[#handed + 1] = sample
    rows[#rows + 1] = row(sample, fields)
    if fields.totals then count('resumes') end
  end
  if #handed > 0 then redis.call('SADD', key_held(holder), unpack(handed)) end
end

-- A given-up group that was requeued lends its prompt before any new one; the cursor then stays where it is. It moves
-- past prompts that a lost history had trained.
local function next_prompt(group)
  local given_up = redis.call('LPOP', key_requeued)
  if given_up then
    redis.call('HSET', key_group(given_up), 'requeued_as', group)
    return redis.call('HGET', key_group(given_up), 'prompt')
  end
  local prompt
  repeat prompt = count('prompt_cursor') - 1 until redis.call('SREM', key_reasserted, prompt) == 0
  return prompt
end

local function admit(engine)
  local group = count('groups') - 1
  count('admitted')
  local hash, queued = {'v0', engine, 'prompt', next_prompt(group), 'state', 'live', 'refills', '0', 'finished', '0'}, {}
  for index = 0, run.group_size - 1 do
    local sample = sample_name(group, index, '0')
    begin_sample(sample)
    hash[#hash + 1], hash[#hash + 2] = 'attempt:' .. index, '0'
    queued[#queued + 1], queued[#queued + 2] = group, sample
  end
  redis.call('HSET', key_group(group), unpack(hash))
  redis.call('ZADD', key_queue, unpack(queued))
  redis.call('ZADD', key_live, engine, group)
end

-- The setting that leaves no room for another group, if any.
local function no_room()
  if tonumber(run.journal_bytes) >= tonumber(run.max_journal_bytes) then return 'buffer.max_journal_mib' end
  if redis.call('ZCARD', key_ready) >= tonumber(run.max_ready_groups) then return 'buffer.max_ready_groups' end
end

hand_out(key_resume)
hand_out(key_queue)
local knobs, engine, steps = knobs(), engine_version(), tonumber(run.ledger_steps)
local usable = run.admitted - run.filtered - run.dead_lettered
while #rows < wanted and run.asserted_on == server do
  if usable >= tonumber(run.total_groups) or not may_admit(knobs, redis.call('ZCARD', key_live), steps, engine) then
    break
  end
  local filled = no_room()
  if filled then full = filled break end
  admit(engine)
  usable = usable + 1
  hand_out(key_queue)
end
return answer()
