#!lua
-- Lets the next admission take a dead-lettered group's prompt again, before any new one. It becomes a new group there,
-- under the admission rule and stamped with that moment's v0, as the lag bound demands; the old group stays dead-lettered.
-- Each dead letter once: another nonce than the first is told so, and as which group it came back.
-- Keys: dead, group:*, requeued.
-- ARGV: group, nonce.
local key = key_group(ARGV[1])
if redis.call('HEXISTS', key_dead, ARGV[1]) == 0 then return {'unknown'} end
if redis.call('HSETNX', key, 'requeue_nonce', ARGV[2]) == 1 then
  redis.call('RPUSH', key_requeued, ARGV[1])
elseif redis.call('HGET', key, 'requeue_nonce') ~= ARGV[2] then
  return {'again', redis.call('HGET', key, 'requeued_as') or ''}
end
return {'ok'}
