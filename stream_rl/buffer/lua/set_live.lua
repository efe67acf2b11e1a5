#!lua flags=allow-oom
-- Changes rules of the run and enters each change in the audit list, unless that is longer than the caller knew: then
-- its values were checked against others than those in force. Answers the entries that it made; the same nonce, asked
-- again, those it made then.
-- Keys: run, changes.
-- ARGV: nonce, the audit list's length, then rule, value, rule, value, ...
local made = {'ok'}
for _, entry in ipairs(redis.call('LRANGE', key_changes, tonumber(ARGV[2]), -1)) do
  if redis.call('HGET', key_run, 'set_nonce') == ARGV[1] then made[#made + 1] = entry end
end
if redis.call('HGET', key_run, 'set_nonce') == ARGV[1] then return made end
if redis.call('LLEN', key_changes) ~= tonumber(ARGV[2]) then return {'changed'} end
redis.call('HSET', key_run, 'set_nonce', ARGV[1])
for place = 3, #ARGV, 2 do made[#made + 1] = change_rule(ARGV[place], ARGV[place + 1], 'set') end
return made
