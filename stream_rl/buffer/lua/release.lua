#!lua flags=allow-oom
-- Gives leased samples back; leases that are not the newest are left alone.
-- Keys: sample:*, held:*, resume.
-- ARGV: sample, lease, nonce, sample, lease, nonce, ...
for place = 1, #ARGV, 3 do
  local sample = ARGV[place]
  if holds(sample, ARGV[place + 1], ARGV[place + 2]) and state_of(sample) == 'leased' then
    give_back(sample, 'released')
  end
end
return 1
