-- Reads and transitions that several scripts share. Keys are named key_* (keys.py); all begin with KEYS[1].

-- How long a sample's hash outlives its journal: a client that lost the reply and asks again still learns the truth.
local RECEIPT_SECONDS = 3600

local function now_ms()
  local time = redis.call('TIME')
  return tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
end

local function number_of(key, field)
  return tonumber(redis.call('HGET', key, field) or '0')
end

-- A whole number as text: a tenth of what Redis takes to write a Lua number.
local function int(number) return string.format('%d', number) end

-- Fields of a hash by name, '0' where there is none.
local function fields_of(key, ...)
  local named, values = {}, redis.call('HMGET', key, ...)
  for place, name in ipairs({...}) do named[name] = values[place] or '0' end
  return named
end

local function rule(name) return number_of(key_run, name) end

local function count(name, by) return redis.call('HINCRBY', key_run, name, by or 1) end

-- Another one after every restart and failover, which may have cost Redis its newest writes.
local function server_id() return string.match(redis.call('INFO', 'server'), 'run_id:(%w+)') end

-- Whether the trainer has asserted its ledger since this server started. Until then nothing is admitted or taken.
local function ledger_asserted() return redis.call('HGET', key_run, 'asserted_on') == server_id() end

-- A reply for a trainer that a newer one has followed, else nil. A claim that Redis does not know was lost, unless
-- another claim has its number or a later one.
local function superseded(incarnation, nonce)
  local newest = redis.call('HGET', key_run, 'claim_nonce')
  if newest and newest ~= nonce and tonumber(incarnation) <= rule('incarnation') then
    return {'superseded', rule('incarnation')}
  end
end

-- Why this trainer may not write, as a reply; nil when it may. A lost claim has to be asserted again, like the ledger.
local function trainer_refused(incarnation, nonce)
  local known = redis.call('HGET', key_run, 'claim_nonce') == nonce
  if known and ledger_asserted() then return nil end
  return superseded(incarnation, nonce) or {'unasserted', rule('ledger_steps')}
end

-- Gives a rule another value and enters the change in the audit list. Answers the entry, or nil when it was so already.
local function change_rule(name, value, by)
  local old = redis.call('HGET', key_run, name)
  if tonumber(old) == tonumber(value) then return nil end
  local entry = cjson.encode({
    number = redis.call('LLEN', key_changes) + 1, time = now_ms() / 1000, rule = name, old = old, new = value, by = by,
    step = rule('ledger_steps'),
  })
  redis.call('HSET', key_run, name, value)
  redis.call('RPUSH', key_changes, entry)
  return entry
end

local function knobs()
  return {batch = rule('groups_per_step'), run_ahead = rule('run_ahead'), max_lag = rule('max_lag')}
end

local function group_of(sample) return string.match(sample, '^(%d+)') end

local function index_of(sample) return string.match(sample, '^%d+%-(%d+)') end

local function sample_name(group, index, attempt)
  local name = group .. '-' .. index
  if attempt ~= '0' then name = name .. '-' .. attempt end
  return name
end

local function current_sample(group, index)
  return sample_name(group, index, redis.call('HGET', key_group(group), 'attempt:' .. index))
end

-- The oldest version step on any serving engine, or false.
local function engine_version()
  local oldest = redis.call('ZRANGE', key_serving, 0, 0, 'WITHSCORES')
  return oldest[2] and tonumber(oldest[2]) or false
end

-- Whether (number, nonce) is the sample's newest lease.
local function holds(sample, number, nonce)
  local lease = redis.call('HMGET', key_sample(sample), 'lease', 'nonce')
  return lease[1] == number and lease[2] == nonce
end

local function state_of(sample) return redis.call('HGET', key_sample(sample), 'state') end

-- A journal's totals are one field, since each field costs every turn: records, bytes, complete turns, response tokens,
-- generated tokens. None while the journal is empty.
local function parsed_totals(text)
  local records, bytes, turns, response, generated = string.match(text or '0 0 0 0 0', '(%d+) (%d+) (%d+) (%d+) (%d+)')
  return {records = records, bytes = bytes, turns = turns, response = response, generated = generated}
end

local function totals_text(has)
  return string.format('%d %d %d %d %d', has.records, has.bytes, has.turns, has.response, has.generated)
end

local function totals_of(sample) return parsed_totals(redis.call('HGET', key_sample(sample), 'totals')) end

local function begin_sample(sample) redis.call('HSET', key_sample(sample), 'state', 'queued') end

-- The next attempt of one sibling.
local function new_sample(group, index, attempt)
  local sample = sample_name(group, index, attempt)
  redis.call('HSET', key_group(group), 'attempt:' .. index, attempt)
  begin_sample(sample)
  redis.call('ZADD', key_queue, group, sample)
end

local function unhold(sample)
  local holder = redis.call('HGET', key_sample(sample), 'holder')
  if holder then redis.call('SREM', key_held(holder), sample) end
end

-- A leased sample goes back, with its journal: released, expired with its producer, or forgotten by it.
local function give_back(sample, why)
  unhold(sample)
  redis.call('HSET', key_sample(sample), 'state', 'returned', 'returned', why, 'returned_at', now_ms())
  redis.call('ZADD', key_resume, group_of(sample), sample)
end

local function forget_blob(sample, name)
  redis.call('UNLINK', key_blob(sample .. ':' .. name))
  redis.call('SREM', key_blobs(sample), name)
end

-- Deletes the records of a journal that stand beside it.
local function forget_blobs(sample)
  local blobs = redis.call('SMEMBERS', key_blobs(sample))
  if #blobs == 0 then return end
  for place, name in ipairs(blobs) do blobs[place] = key_blob(sample .. ':' .. name) end
  redis.call('UNLINK', key_blobs(sample), unpack(blobs))
end

-- Deletes a sample's journal at once and its hash soon.
local function forget_sample(sample)
  local had = totals_of(sample)
  forget_blobs(sample)
  redis.call('UNLINK', key_journal(sample))
  redis.call('EXPIRE', key_sample(sample), RECEIPT_SECONDS)
  if had.bytes ~= '0' then
    count('journal_bytes', -had.bytes)
    had.bytes = 0
    redis.call('HSET', key_sample(sample), 'totals', totals_text(had))
  end
end

-- An unfinished sample leaves, whoever holds it.
local function drop_sample(sample)
  unhold(sample)
  redis.call('ZREM', key_queue, sample)
  redis.call('ZREM', key_resume, sample)
  redis.call('HSET', key_sample(sample), 'state', 'dropped')
end

local function ended(state) return state == 'finished' or state == 'failed' end

local function forget_group(group)
  local attempts, bytes = redis.call('HGETALL', key_group(group)), 0
  local gone = {key_group(group), key_pictured(group)}
  for place = 1, #attempts, 2 do
    local index = string.match(attempts[place], '^attempt:(%d+)$')
    if index then
      local sample = sample_name(group, index, attempts[place + 1])
      local was = redis.call('HMGET', key_sample(sample), 'state', 'totals')
      if not ended(was[1]) then drop_sample(sample) end
      forget_blobs(sample)
      gone[#gone + 1] = key_journal(sample)
      redis.call('EXPIRE', key_sample(sample), RECEIPT_SECONDS)
      bytes = bytes + parsed_totals(was[2]).bytes
    end
  end
  for _, image in ipairs(redis.call('SMEMBERS', key_pictured(group))) do
    if redis.call('HINCRBY', key_images, image, -1) == 0 then
      redis.call('HDEL', key_images, image)
      redis.call('UNLINK', key_image(image))
    end
  end
  if bytes > 0 then count('journal_bytes', -bytes) end
  redis.call('UNLINK', unpack(gone))
end

-- Numbers and keeps the small record of an attempt that has ended.
local OUTCOME = '{"number":%d,"time":%.3f,"sample":"%s","group":%s,"index":%s,"attempt":%s,"kind":"%s","status":"%s",'
  .. '"stop_reason":"%s","reward":"%s","turns":%s,"response_length":%s,"generated":%s,"v0":%s}'
local function push_outcome(number, sample, kind, status, reason, reward, totals, v0)
  local group, index, attempt = string.match(sample, '^(%d+)%-(%d+)%-?(%d*)$')
  if attempt == '' then attempt = '0' end
  redis.call('RPUSH', key_outcomes, string.format(OUTCOME, number, now_ms() / 1000, sample, group, index, attempt, kind,
    status, reason, reward, totals.turns, totals.response, totals.generated, v0))
end

local function record_outcome(sample, kind, status, reason, reward)
  local v0 = redis.call('HGET', key_group(group_of(sample)), 'v0') or '0'
  push_outcome(count('outcomes'), sample, kind, status, reason, reward, totals_of(sample), v0)
end

-- A group is given up: its finished siblings are kept, the others dropped.
local function dead_letter(group, reason, detail)
  local finished = {}
  for index = 0, rule('group_size') - 1 do
    local sample = current_sample(group, index)
    local state = state_of(sample)
    if state == 'finished' then
      finished[#finished + 1] = sample
    else
      if not ended(state) then
        if number_of(key_sample(sample), 'lease') > 0 then record_outcome(sample, 'failed', 'aborted', reason, '') end
        drop_sample(sample)
      end
      forget_sample(sample)
    end
  end
  redis.call('HSET', key_dead, group, cjson.encode({
    v0 = number_of(key_group(group), 'v0'), prompt = number_of(key_group(group), 'prompt'), stop_reason = reason,
    detail = detail, finished = finished,
  }))
  redis.call('HSET', key_group(group), 'state', 'dead_lettered')
  redis.call('ZREM', key_live, group)
  count('dead_lettered')
  count('untrainable')
end
