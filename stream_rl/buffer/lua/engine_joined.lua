#!lua flags=allow-oom
-- Registers an engine without weights; one that served before serves no longer, and is pinned no longer.
-- Keys: engines, versions, serving, pins.
-- ARGV: engine, JSON.
redis.call('HSET', key_engines, ARGV[1], ARGV[2])
redis.call('HDEL', key_versions, ARGV[1])
redis.call('ZREM', key_serving, ARGV[1])
redis.call('HDEL', key_pins, ARGV[1])
return 1
