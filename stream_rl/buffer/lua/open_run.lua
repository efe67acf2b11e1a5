#!lua flags=allow-oom
-- Opens a run, or opens it again under these rules; counters stay. Answers the run's group_size, another one than
-- asked for when the run was begun with that: then nothing was changed. A new run has no ledger to assert.
-- Keys: run.
-- ARGV: group_size, then field, value, ... of the rules.
local existing = redis.call('HGET', key_run, 'group_size')
if existing and existing ~= ARGV[1] then return tonumber(existing) end
redis.call('HSETNX', key_run, 'asserted_on', server_id())
redis.call('HSET', key_run, 'state', 'running', 'heard_on', server_id(), unpack(ARGV, 2))
return tonumber(ARGV[1])
