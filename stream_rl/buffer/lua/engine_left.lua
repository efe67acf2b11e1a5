#!lua flags=allow-oom
-- Forgets an engine, and its pin: the version that an evaluation wanted is gone with it.
-- Keys: engines, versions, serving, pins.
-- ARGV: engine.
redis.call('HDEL', key_engines, ARGV[1])
redis.call('HDEL', key_versions, ARGV[1])
redis.call('ZREM', key_serving, ARGV[1])
redis.call('HDEL', key_pins, ARGV[1])
return 1
