#!lua flags=allow-oom
-- After a restart or failover: the trainer's claim and the ledger entries that Redis lost are written again, in order.
-- Their groups leave whatever the older history made of them, so that none is trained, admitted or requeued again. What
-- is missing of their records is played again, unless a checkpoint covers the step: a replay waits for it. Answers the
-- groups of which something is missing.
-- Keys: run, ledger, live, ready, dead, requeued, reasserted, group:*, sample:*, journal:*, blob:*, blobs:*, image:*,
--       images, pictured:*, held:*, queue, resume.
-- ARGV: incarnation, nonce, the oldest checkpoint kept, then step, entry, step, entry, ... in order, from the step after
--       the ledger's end.
if redis.call('HEXISTS', key_run, 'group_size') == 0 then return {'unopened'} end
local refused = superseded(ARGV[1], ARGV[2])
if refused then return refused end
redis.call('HSET', key_run, 'incarnation', ARGV[1], 'claim_nonce', ARGV[2], 'asserted_on', server_id())

local numbered, covered = rule('groups'), tonumber(ARGV[3])

-- A prompt that was trained is neither admitted nor requeued again.
local function use_prompt(prompt)
  if prompt >= rule('prompt_cursor') then redis.call('SADD', key_reasserted, prompt) end
  for _, given_up in ipairs(redis.call('LRANGE', key_requeued, 0, -1)) do
    if number_of(key_group(given_up), 'prompt') == prompt then redis.call('LREM', key_requeued, 1, given_up) end
  end
end

-- Counts a group as trained, and takes it out of where it is. One without a hash was filtered since, or its admission is
-- lost.
local function leave(group, prompt)
  local state = redis.call('HGET', key_group(group), 'state')
  if not state then
    if group < numbered then
      count('filtered', -1)
    else
      count('admitted')
      use_prompt(prompt)
      redis.call('HSET', key_run, 'groups', math.max(rule('groups'), group + 1))
    end
  elseif state == 'dead_lettered' then
    redis.call('HDEL', key_dead, group)
    redis.call('LREM', key_requeued, 1, group)
    count('dead_lettered', -1)
  end
  redis.call('ZREM', key_live, group)
  redis.call('ZREM', key_ready, group)
  count('trained')
end

-- Siblings that neither ended nor are on their way to it begin anew. Whether all had ended.
local function play_lost(group, prompt, v0)
  redis.call('HSET', key_group(group), 'state', 'trained', 'refills', 0, 'prompt', prompt, 'v0', v0)
  redis.call('HSETNX', key_group(group), 'finished', 0)
  for index = 0, rule('group_size') - 1 do
    local attempt = redis.call('HGET', key_group(group), 'attempt:' .. index)
    local state = attempt and state_of(sample_name(group, index, attempt))
    if not state or state == 'failed' or state == 'dropped' then
      local again = attempt and tostring(attempt + 1) or '0'
      redis.call('UNLINK', key_sample(sample_name(group, index, again)))
      new_sample(group, index, again)
    end
  end
  return number_of(key_group(group), 'finished') == rule('group_size')
end

local lost = {'ok'}
for place = 4, #ARGV, 2 do
  local step, entry = tonumber(ARGV[place]), cjson.decode(ARGV[place + 1])
  for at, group in ipairs(entry.groups) do
    leave(group, entry.prompts[at])
    if step <= covered then
      forget_group(group)
    elseif not play_lost(group, entry.prompts[at], entry.v0[at]) then
      lost[#lost + 1] = group
    end
  end
  redis.call('HSET', key_ledger, step, ARGV[place + 1])
  redis.call('HSET', key_run, 'ledger_steps', step)
end
return lost
