#!lua flags=allow-oom
-- Drops the outcomes numbered ARGV[1] and lower. The list ends with the newest number, so its length tells the oldest.
-- Keys: run, outcomes.
-- ARGV: number.
local length = redis.call('LLEN', key_outcomes)
local oldest = rule('outcomes') - length + 1
local drop = math.min(tonumber(ARGV[1]) - oldest + 1, length)
if drop > 0 then redis.call('LPOP', key_outcomes, drop) end
return 1
