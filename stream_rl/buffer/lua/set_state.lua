#!lua flags=allow-oom
-- Sets what producers are asked to do.
-- Keys: run.
-- ARGV: state.
redis.call('HSET', key_run, 'state', ARGV[1])
return 1
