"""The policies compared, all on the same buffer, producers and engines: what each lets start, and when it trains.

sync            a step's groups start when the engines have the last step's weights, and all of them are waited for
one step off    the next step's groups are played while this one is trained; both are waited for
over-sampling   APRIL: twice a step's groups are played; when enough are complete the others' requests are aborted, and
                they go on in the next step, with what they have
admission only  AReaL: a group starts while it would be at most 4 steps old if all went well; whatever is complete is
                trained, however old
and drop        the same, but groups that are older than 4 when they could be trained are thrown away
ours            scheduling.py's three knobs at their defaults
"""

from __future__ import annotations

from dataclasses import dataclass, replace

UNBOUNDED = 1_000_000
STALENESS = 4


@dataclass(frozen=True, slots=True)
class Policy:
    """One policy: rules of the buffer, what an update does, and the order of a trainer's doings.

    `takes_first`: the next step's groups are taken before the weights of this one are published, so that what starts
    then is played with them; else publishing comes first. `drops_beyond`: complete groups of a larger lag are thrown
    away.
    """

    name: str
    run_ahead: float
    max_staleness: int
    max_lag: int
    pause_mode: str = "in_place"
    takes_first: bool = False
    drops_beyond: int | None = None


OURS = Policy("ours", 3, 8, 12)
POLICIES = (
    Policy("sync", 0, 0, 0),
    Policy("one step off", 1, 1, 1, takes_first=True),
    Policy("over-sampling", 2, UNBOUNDED, UNBOUNDED, pause_mode="abort", takes_first=True),
    Policy("admission only", STALENESS, UNBOUNDED, UNBOUNDED),
    Policy("admission and drop", STALENESS, UNBOUNDED, UNBOUNDED, drops_beyond=STALENESS),
    OURS,
    replace(OURS, name="ours, retract", pause_mode="retract"),
    replace(OURS, name="ours, bound 6", max_staleness=6, max_lag=6),
    replace(OURS, name="ours, bound 4", max_staleness=4, max_lag=4),
)
