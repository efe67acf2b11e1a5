#!lua flags=allow-oom
-- A producer lives for ARGV[2] more milliseconds of this server's clock. Answers the run's state.
-- Keys: holders, run.
-- ARGV: holder, milliseconds.
redis.call('ZADD', key_holders, now_ms() + tonumber(ARGV[2]), ARGV[1])
return redis.call('HGET', key_run, 'state') or 'running'
