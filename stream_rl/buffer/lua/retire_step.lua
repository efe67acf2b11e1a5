#!lua flags=allow-oom
-- Retires the oldest ledger entry when it is not after ARGV[3]: the entry, and its groups' records. One step a call, so
-- that no call is long. Answers the newest step retired so far.
-- Keys: run, ledger, group:*, sample:*, journal:*, blob:*, blobs:*, image:*, images, pictured:*, held:*, queue, resume.
-- ARGV: incarnation, nonce, oldest step kept for resume.
local refused = trainer_refused(ARGV[1], ARGV[2])
if refused then return refused end
local step = rule('retired') + 1
if step > tonumber(ARGV[3]) or step > rule('ledger_steps') then return {'level', step - 1} end
for _, group in ipairs(cjson.decode(redis.call('HGET', key_ledger, step)).groups) do forget_group(group) end
redis.call('HDEL', key_ledger, step)
redis.call('HSET', key_run, 'retired', step)
return {'retired', step}
