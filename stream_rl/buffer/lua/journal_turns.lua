#!lua flags=no-writes
-- Complete turns in the journal of every sample that has not ended: sample, turns, sample, turns, ...
-- Keys: resume, holders, held:*, sample:*.
local found = {}
local function look(samples)
  for _, sample in ipairs(samples) do
    found[#found + 1] = sample
    found[#found + 1] = totals_of(sample).turns
  end
end
look(redis.call('ZRANGE', key_resume, 0, -1))
for _, holder in ipairs(redis.call('ZRANGE', key_holders, 0, -1)) do look(redis.call('SMEMBERS', key_held(holder))) end
return found
