#!lua flags=allow-oom
-- Makes the caller the run's trainer, and the ledger that Redis has the run's ledger. The first is incarnation 0; the
-- same nonce claims once.
-- Keys: run.
-- ARGV: nonce.
if redis.call('HGET', key_run, 'claim_nonce') ~= ARGV[1] then
  if redis.call('HEXISTS', key_run, 'claim_nonce') == 1 then count('incarnation') end
  redis.call('HSET', key_run, 'claim_nonce', ARGV[1])
end
redis.call('HSET', key_run, 'asserted_on', server_id())
return {rule('incarnation'), rule('ledger_steps')}
