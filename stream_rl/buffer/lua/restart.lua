#!lua flags=allow-oom
-- Cuts a journal to its start record: the episode begins again under the same lease.
-- Keys: sample:*, journal:*, outcomes, run.
-- ARGV: sample, lease, nonce.
local sample = ARGV[1]
local key = key_sample(sample)
if not holds(sample, ARGV[2], ARGV[3]) or state_of(sample) ~= 'leased' then return {'lease_lost'} end
if number_of(key, 'records') > 1 then
  record_outcome(sample, 'restarted', 'aborted', '', '')
  redis.call('LTRIM', key_journal(sample), 0, 0)
  redis.call('HSET', key, 'records', 1, 'bytes', #redis.call('LINDEX', key_journal(sample), 0), 'turns', 0,
    'response', 0, 'generated', 0)
end
return {'ok'}
