#!lua flags=allow-oom
-- A producer lives for ARGV[2] more milliseconds of this server's clock. Answers the run's state, and how many samples a
-- producer may hold (0: as its own settings say).
-- Keys: holders, terms, run.
-- ARGV: holder, milliseconds.
redis.call('ZADD', key_holders, now_ms() + tonumber(ARGV[2]), ARGV[1])
redis.call('HSET', key_terms, ARGV[1], ARGV[2])
return {redis.call('HGET', key_run, 'state') or 'running', rule('concurrency')}
