#!lua flags=allow-oom
-- Gives back what a producer holds here and does not know of: samples it had ended or released, which Redis lost.
-- Keys: held:*, sample:*, resume.
-- ARGV: holder, the samples it knows of.
local known = {}
for place = 2, #ARGV do known[ARGV[place]] = true end
for _, sample in ipairs(redis.call('SMEMBERS', key_held(ARGV[1]))) do
  if not known[sample] then give_back(sample, 'forgotten') end
end
return 1
