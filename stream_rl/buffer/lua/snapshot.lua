#!lua flags=no-writes
-- The run at one instant, as name, value, name, value, ...
-- Keys: run, live, ready, queue, resume, sample:*, holders, held:*, engines, versions, serving, processes, recoveries:*.
-- ARGV: the kinds of recoveries.
local leased = 0
local holders = redis.call('ZRANGE', key_holders, 0, -1)
for _, holder in ipairs(holders) do leased = leased + redis.call('SCARD', key_held(holder)) end
local recoveries = {}
for place, kind in ipairs(ARGV) do recoveries[place] = redis.call('SCARD', key_recoveries(kind)) end
-- When the sample came back that waits longest, of the first of them: those of the oldest groups.
local returned
for _, sample in ipairs(redis.call('ZRANGE', key_resume, 0, 63)) do
  local at = tonumber(redis.call('HGET', key_sample(sample), 'returned_at'))
  if at and (not returned or at < returned) then returned = at end
end
return {
  'run', redis.call('HGETALL', key_run),
  'live', redis.call('ZCARD', key_live), 'complete', redis.call('ZCARD', key_ready),
  'pending', redis.call('ZCARD', key_queue), 'resumable', redis.call('ZCARD', key_resume), 'leased', leased,
  'producers', #holders, 'recoveries', recoveries,
  'partial_ms', returned and now_ms() - returned or 0,
  'oldest_v0', redis.call('ZRANGE', key_live, 0, 0, 'WITHSCORES')[2] or '',
  'engine_version', tostring(engine_version() or ''),
  'engines', redis.call('HGETALL', key_engines), 'versions', redis.call('HGETALL', key_versions),
  'processes', redis.call('HVALS', key_processes),
}
