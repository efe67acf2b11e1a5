-- The decisions of stream_rl/scheduling.py, number for number; no keys.

-- Whether one more group may be admitted. `engine` is false while no engine serves.
local function may_admit(knobs, live, steps, engine)
  if not engine then return false end
  return live + knobs.batch * (steps - engine) < (knobs.run_ahead + 1) * knobs.batch
end

-- The batch out of `ready` ({group =, v0 =}, sorted oldest first), or nil and why not.
-- oldest: the smallest v0 of a live group. due(limit): how many live groups have v0 <= limit.
local function choose_batch(knobs, ready, steps, oldest, due)
  if #ready < knobs.batch then return nil, 'not_enough_complete' end
  local taken = 0
  for limit = oldest, steps do
    local steps_left = math.max(limit + knobs.max_lag - steps, 0)
    while taken < knobs.batch and ready[taken + 1].v0 <= limit do taken = taken + 1 end
    if taken < math.min(due(limit) - steps_left * knobs.batch, knobs.batch) then return nil, 'lag_rule' end
  end
  local batch = {}
  for place = 1, knobs.batch do batch[place] = ready[place].group end
  return batch
end
