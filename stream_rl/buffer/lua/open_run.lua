#!lua flags=allow-oom
-- Opens a run, or opens it again under these rules; counters stay. Answers the run's group_size, another one than
-- asked for when the run was begun with that: then nothing was changed. A new run has no ledger to assert. Opened again,
-- a rule keeps what it was set to since, unless another value is asked for than the last time.
-- Keys: run, configured, changes.
-- ARGV: group_size, then field, value, ... of the rules.
local existing = redis.call('HGET', key_run, 'group_size')
if existing and existing ~= ARGV[1] then return tonumber(existing) end
redis.call('HSETNX', key_run, 'asserted_on', server_id())
redis.call('HSET', key_run, 'state', 'running', 'heard_on', server_id())

local asked_anew = {}
for place = 2, #ARGV, 2 do
  local before = redis.call('HGET', key_configured, ARGV[place]) or ''
  asked_anew[ARGV[place]] = tonumber(before) ~= tonumber(ARGV[place + 1])
end
-- These three are only valid together.
local anew = asked_anew.run_ahead or asked_anew.max_staleness or asked_anew.max_lag
asked_anew.run_ahead, asked_anew.max_staleness, asked_anew.max_lag = anew, anew, anew
for place = 2, #ARGV, 2 do
  local name, value = ARGV[place], ARGV[place + 1]
  if not existing or name == 'total_groups' then
    redis.call('HSET', key_run, name, value)
  elseif asked_anew[name] then
    change_rule(name, value, 'resume')
  end
end
redis.call('HSET', key_configured, unpack(ARGV, 2))
return tonumber(ARGV[1])
