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

local function new_sample(group, index, attempt)
  local sample = sample_name(group, index, attempt)
  redis.call('HSET', key_group(group), 'attempt:' .. index, attempt)
  redis.call('HSET', key_sample(sample), 'state', 'queued', 'lease', 0, 'records', 0, 'bytes', 0, 'turns', 0,
    'response', 0, 'generated', 0)
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

-- Deletes a sample's journal at once and its hash soon.
local function forget_sample(sample)
  local size = redis.call('HGET', key_sample(sample), 'bytes')
  if not size then return end
  count('journal_bytes', -size)
  for _, name in ipairs(redis.call('SMEMBERS', key_blobs(sample))) do forget_blob(sample, name) end
  redis.call('UNLINK', key_journal(sample))
  redis.call('HSET', key_sample(sample), 'bytes', 0)
  redis.call('EXPIRE', key_sample(sample), RECEIPT_SECONDS)
end

local function forget_group(group)
  if redis.call('EXISTS', key_group(group)) == 0 then return end
  for index = 0, rule('group_size') - 1 do forget_sample(current_sample(group, index)) end
  for _, image in ipairs(redis.call('SMEMBERS', key_pictured(group))) do
    if redis.call('HINCRBY', key_images, image, -1) == 0 then
      redis.call('HDEL', key_images, image)
      redis.call('UNLINK', key_image(image))
    end
  end
  redis.call('UNLINK', key_group(group), key_pictured(group))
end

-- Numbers and keeps the small record of an attempt that has ended.
local function record_outcome(sample, kind, status, reason, reward)
  local group = group_of(sample)
  local totals = redis.call('HMGET', key_sample(sample), 'turns', 'response', 'generated')
  redis.call('RPUSH', key_outcomes, cjson.encode({
    number = count('outcomes'), time = now_ms() / 1000, sample = sample, group = tonumber(group),
    index = tonumber(index_of(sample)), attempt = tonumber(string.match(sample, '^%d+%-%d+%-(%d+)') or '0'),
    kind = kind, status = status, stop_reason = reason, reward = reward, turns = tonumber(totals[1]),
    response_length = tonumber(totals[2]), generated = tonumber(totals[3]), v0 = number_of(key_group(group), 'v0'),
  }))
end

-- A group that leaves unfinished: its other siblings are dropped, whoever holds them. Answers the finished ones.
local function drop_unfinished(group, reason)
  local finished = {}
  for index = 0, rule('group_size') - 1 do
    local sample = current_sample(group, index)
    local state = state_of(sample)
    if state == 'finished' then
      finished[#finished + 1] = sample
    else
      if state ~= 'failed' then
        if number_of(key_sample(sample), 'lease') > 0 then record_outcome(sample, 'failed', 'aborted', reason, '') end
        unhold(sample)
        redis.call('ZREM', key_queue, sample)
        redis.call('ZREM', key_resume, sample)
        redis.call('HSET', key_sample(sample), 'state', 'dropped')
      end
      forget_sample(sample)
    end
  end
  return finished
end

local function dead_letter(group, reason, detail)
  local finished = drop_unfinished(group, reason)
  redis.call('HSET', key_dead, group, cjson.encode({
    v0 = number_of(key_group(group), 'v0'), prompt = number_of(key_group(group), 'prompt'), stop_reason = reason,
    detail = detail, finished = finished,
  }))
  redis.call('HSET', key_group(group), 'state', 'dead_lettered')
  redis.call('ZREM', key_live, group)
  count('dead_lettered')
  count('untrainable')
end
