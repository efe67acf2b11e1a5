#!lua flags=allow-oom
-- Retires the oldest ledger entry when it is not after ARGV[2]: the entry, and its groups' records. One step a call, so
-- that no call is long. Answers the newest step retired so far.
-- Keys: run, ledger, group:*, sample:*, journal:*.
-- ARGV: incarnation, oldest step kept for resume.
if tonumber(ARGV[1]) ~= rule('incarnation') then return {'superseded', rule('incarnation')} end
local step = rule('retired') + 1
if step > tonumber(ARGV[2]) or step > rule('ledger_steps') then return {'level', step - 1} end
for _, group in ipairs(cjson.decode(redis.call('HGET', key_ledger, step)).groups) do forget_group(group) end
redis.call('HDEL', key_ledger, step)
redis.call('HSET', key_run, 'retired', step)
return {'retired', step}
