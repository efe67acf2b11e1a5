#!lua flags=allow-oom
-- Forgets an engine.
-- Keys: engines, versions, serving.
-- ARGV: engine.
redis.call('HDEL', key_engines, ARGV[1])
redis.call('HDEL', key_versions, ARGV[1])
redis.call('ZREM', key_serving, ARGV[1])
return 1
