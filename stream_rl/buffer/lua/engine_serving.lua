#!lua flags=allow-oom
-- An engine serves a version. Never lowers an engine's version, and refuses one below the newest v0 of a live group:
-- v0 must stay a lower bound of every token that the group may still get.
-- Keys: engines, versions, serving, live.
-- ARGV: engine, step, incarnation, pid that must be the engine's (empty: any).
local engine, step, incarnation = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
local about = redis.call('HGET', key_engines, engine)
if not about then return {'unknown'} end
if ARGV[4] ~= '' and cjson.decode(about).pid ~= tonumber(ARGV[4]) then return {'another'} end
local newest = redis.call('ZREVRANGE', key_live, 0, 0, 'WITHSCORES')[2]
if newest and step < tonumber(newest) then return {'older', newest} end
local version = redis.call('HGET', key_versions, engine)
if version then
  local known_step, known_incarnation = string.match(version, '^(%d+)%.?(%d*)$')
  known_step, known_incarnation = tonumber(known_step), tonumber(known_incarnation) or 0
  if step < known_step or (step == known_step and incarnation < known_incarnation) then return {'ok'} end
end
redis.call('HSET', key_versions, engine, incarnation == 0 and ARGV[2] or ARGV[2] .. '.' .. ARGV[3])
redis.call('ZADD', key_serving, step, engine)
return {'ok'}
