#!lua flags=allow-oom
-- Keeps a serving engine at its version until the time is over or it is released. Where others serve, it counts as
-- serving no more: nothing is admitted for it, and its version holds nobody back. Gives 1, or 0 if it does not serve.
-- Keys: versions, serving, pins.
-- ARGV: engine, milliseconds.
local version = redis.call('HGET', key_versions, ARGV[1])
if not version then return 0 end
redis.call('HSET', key_pins, ARGV[1], string.format('%.0f', now_ms() + tonumber(ARGV[2])) .. ' ' .. version)
if redis.call('ZCARD', key_serving) > 1 then
  redis.call('HDEL', key_versions, ARGV[1])
  redis.call('ZREM', key_serving, ARGV[1])
end
return 1
