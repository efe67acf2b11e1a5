#!lua flags=allow-oom
-- Ends a sample as failed: the next attempt of the same sibling is queued, or, with the refills spent, the group is
-- dead-lettered. A trained group, whose lost records are played again, cannot be: each spent budget counts as a
-- completion that nothing can be trained from, which ends the run when there are too many.
-- Keys: run, sample:*, journal:*, blob:*, blobs:*, group:*, held:*, queue, resume, live, dead, outcomes.
-- ARGV: sample, lease, nonce, stop reason, detail.
local sample = ARGV[1]
local group, index = group_of(sample), index_of(sample)
if not holds(sample, ARGV[2], ARGV[3]) then return {'lease_lost'} end
local state = state_of(sample)
if state == 'failed' then return {'ok'} end
if state ~= 'leased' then return {'lease_lost'} end

unhold(sample)
redis.call('HSET', key_sample(sample), 'state', 'failed')
record_outcome(sample, 'failed', 'failed', ARGV[4], '')
local spent = number_of(key_group(group), 'refills') >= rule('max_refills_per_group')
if spent and redis.call('HGET', key_group(group), 'state') ~= 'trained' then
  dead_letter(group, ARGV[4], ARGV[5])
else
  if spent then
    redis.call('HSET', key_group(group), 'refills', 0)
    count('untrainable')
  end
  redis.call('HINCRBY', key_group(group), 'refills', 1)
  count('refills')
  forget_sample(sample)
  new_sample(group, index, tostring(number_of(key_group(group), 'attempt:' .. index) + 1))
end
return {'ok'}
