#!lua flags=allow-oom
-- The ledger's entry of a step; for the step after the ledger's end, a batch by the pull rule, written to the ledger in
-- this call. A recorded step whose groups lost records is waited for: they are being played again.
-- Keys: run, ledger, ready, live, group:*, engines, serving.
-- ARGV: incarnation, nonce, step.
local refused = trainer_refused(ARGV[1], ARGV[2])
if refused then return refused end
local step, steps = tonumber(ARGV[3]), rule('ledger_steps')
if step > steps + 1 then return {'behind', steps} end

local function waiting(reason)
  local untrainable = rule('untrainable')
  if untrainable >= rule('max_untrainable_completions') then return {'untrainable', untrainable} end
  local joining = redis.call('HLEN', key_engines) - redis.call('ZCARD', key_serving)
  return {'waiting', reason, redis.call('ZCARD', key_live), redis.call('ZCARD', key_ready), joining}
end

if step <= steps then
  local entry = redis.call('HGET', key_ledger, step)
  if not entry then return {'retired'} end
  for _, group in ipairs(cjson.decode(entry).groups) do
    if number_of(key_group(group), 'finished') < rule('group_size') then return waiting('records_lost') end
  end
  return {'entry', entry}
end

local ready, scored = {}, redis.call('ZRANGE', key_ready, 0, -1, 'WITHSCORES')
for place = 1, #scored, 2 do
  ready[#ready + 1] = {group = tonumber(scored[place]), v0 = tonumber(scored[place + 1])}
end
table.sort(ready, function(a, b) return a.v0 < b.v0 or (a.v0 == b.v0 and a.group < b.group) end)
local oldest = tonumber(redis.call('ZRANGE', key_live, 0, 0, 'WITHSCORES')[2])
local batch, reason = choose_batch(knobs(), ready, steps, oldest, function(limit)
  return redis.call('ZCOUNT', key_live, '-inf', limit)
end)
if not batch then return waiting(reason) end
local prompts, v0 = {}, {}
for place, group in ipairs(batch) do
  local about = redis.call('HMGET', key_group(group), 'prompt', 'v0')
  prompts[place], v0[place] = tonumber(about[1]), tonumber(about[2])
end
local entry = cjson.encode({
  groups = batch, prompts = prompts, v0 = v0, max_staleness = rule('max_staleness'), max_lag = rule('max_lag'),
})
redis.call('HSET', key_ledger, step, entry)
redis.call('HSET', key_run, 'ledger_steps', step)
for _, group in ipairs(batch) do
  redis.call('ZREM', key_ready, group)
  redis.call('ZREM', key_live, group)
  redis.call('HSET', key_group(group), 'state', 'trained')
end
count('trained', #batch)
return {'entry', entry}
