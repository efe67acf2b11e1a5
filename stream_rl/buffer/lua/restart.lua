#!lua flags=allow-oom
-- Cuts a journal to its start record: the episode begins again under the same lease, with a new nonce, so that a lease
-- names one history that only grows: a Redis that lost the cut refuses what follows it.
-- Keys: run, sample:*, journal:*, blob:*, blobs:*, group:*, outcomes.
-- ARGV: sample, lease, nonce, new nonce.
local sample = ARGV[1]
local key = key_sample(sample)
if holds(sample, ARGV[2], ARGV[4]) then return {'ok'} end
if not holds(sample, ARGV[2], ARGV[3]) or state_of(sample) ~= 'leased' then return {'lease_lost'} end
redis.call('HSET', key, 'nonce', ARGV[4])
local had = totals_of(sample)
if tonumber(had.records) > 1 then
  record_outcome(sample, 'restarted', 'aborted', '', '')
  redis.call('LTRIM', key_journal(sample), 0, 0)
  local start = redis.call('LINDEX', key_journal(sample), 0)
  local size = tonumber(string.match(start, '^@.+:(%d+)$') or #start)
  for _, name in ipairs(redis.call('SMEMBERS', key_blobs(sample))) do
    if not string.find(name, '^%w+:0:') then forget_blob(sample, name) end
  end
  count('journal_bytes', size - had.bytes)
  redis.call('HSET', key, 'totals', totals_text({records = 1, bytes = size, turns = 0, response = 0, generated = 0}))
end
return {'ok'}
