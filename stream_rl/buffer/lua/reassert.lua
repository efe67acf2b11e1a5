#!lua flags=allow-oom
-- After a restart or failover: the trainer's claim and the ledger entries that Redis lost are written again, in order.
-- Their groups leave whatever the older history made of them, so that none is trained, admitted or requeued again.
-- Answers the groups whose records are not whole any more: those cannot be replayed.
-- Keys: run, ledger, live, ready, dead, requeued, reasserted, group:*, sample:*, journal:*, blob:*, blobs:*, held:*,
--       queue, resume, outcomes.
-- ARGV: incarnation, nonce, then step, entry, step, entry, ... in order, from the step after the ledger's end.
if redis.call('HEXISTS', key_run, 'group_size') == 0 then return {'unopened'} end
local refused = superseded(ARGV[1], ARGV[2])
if refused then return refused end
redis.call('HSET', key_run, 'incarnation', ARGV[1], 'claim_nonce', ARGV[2], 'asserted_on', server_id())

local numbered = rule('groups')

-- A prompt that was trained is neither admitted nor requeued again.
local function use_prompt(prompt)
  if prompt >= rule('prompt_cursor') then redis.call('SADD', key_reasserted, prompt) end
  for _, given_up in ipairs(redis.call('LRANGE', key_requeued, 0, -1)) do
    if number_of(key_group(given_up), 'prompt') == prompt then redis.call('LREM', key_requeued, 1, given_up) end
  end
end

-- Takes a group out of where it is; whether all its records are there.
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
    return false
  end
  if state == 'dead_lettered' then
    redis.call('HDEL', key_dead, group)
    redis.call('LREM', key_requeued, 1, group)
    count('dead_lettered', -1)
  elseif state == 'live' then
    drop_unfinished(group, '')
  end
  redis.call('ZREM', key_live, group)
  redis.call('ZREM', key_ready, group)
  redis.call('HSET', key_group(group), 'state', 'trained')
  return state == 'complete'
end

local torn = {'ok'}
for place = 3, #ARGV, 2 do
  local entry = cjson.decode(ARGV[place + 1])
  for at, group in ipairs(entry.groups) do
    if not leave(group, entry.prompts[at]) then torn[#torn + 1] = group end
    count('trained')
  end
  redis.call('HSET', key_ledger, ARGV[place], ARGV[place + 1])
  redis.call('HSET', key_run, 'ledger_steps', ARGV[place])
end
return torn
