#!lua flags=no-writes
-- The run at one instant, as name, value, name, value, ...
-- Keys: run, live, ready, queue, resume, holders, held:*, engines, versions, serving, processes, recoveries:*.
-- ARGV: the kinds of recoveries.
local leased = 0
local holders = redis.call('ZRANGE', key_holders, 0, -1)
for _, holder in ipairs(holders) do leased = leased + redis.call('SCARD', key_held(holder)) end
local recoveries = {}
for place, kind in ipairs(ARGV) do recoveries[place] = redis.call('SCARD', key_recoveries(kind)) end
return {
  'run', redis.call('HGETALL', key_run),
  'live', redis.call('ZCARD', key_live), 'complete', redis.call('ZCARD', key_ready),
  'pending', redis.call('ZCARD', key_queue), 'resumable', redis.call('ZCARD', key_resume), 'leased', leased,
  'producers', #holders, 'recoveries', recoveries,
  'oldest_v0', redis.call('ZRANGE', key_live, 0, 0, 'WITHSCORES')[2] or '',
  'engine_version', tostring(engine_version() or ''),
  'engines', redis.call('HGETALL', key_engines), 'versions', redis.call('HGETALL', key_versions),
  'processes', redis.call('HVALS', key_processes),
}
