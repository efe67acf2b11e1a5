"""`stream-rl set`: on a run that lives and on one that has stopped; status and report show what was changed."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

import pytest
from command_line import StreamRL
from played_run import RULES

from stream_rl.buffer import EmbeddedServer, TrajectoryBuffer


def test_changes_say_when_they_hold_and_are_shown(stream_rl: StreamRL, live: Path) -> None:
    answer = stream_rl("set", live, "max_staleness=4", "max_lag=6", "concurrency=512")
    assert answer.code == 0, answer.err
    assert answer.out.splitlines() == [
        "scheduling.max_staleness: 8 -> 4", "  from the next step that is taken",
        "scheduling.max_lag: 12 -> 6",
        "  the groups live now (1) may still be trained up to lag 12, overdue ones first; "
        "groups that start from now on keep to 6",
        "producer.concurrency: 0 -> 512", "  within a second",
    ]  # fmt: skip
    assert stream_rl("set", live, "max_lag=6").out == "nothing changed: these are the values in force\n"
    for command in (("set", live), ("status", live, "--once")):
        shown = stream_rl(*command).out
        assert "changed settings" in shown
        assert "scheduling.max_staleness" in shown
        assert re.search(r"max_lag +6\b", shown)


@pytest.mark.parametrize(
    ("assignment", "message"),
    [
        ("max_stale=3", "did you mean 'max_staleness'?"),
        ("rollout.group_size=3", "no live setting 'rollout.group_size'"),
        ("max_lag=0", "max_staleness=8 is more than max_lag=0"),
        ("max_lag", "must be key.path=value"),
        ("max_lag=9 max_lag=10", "max_lag is given twice: leave one out"),
        ("max_lag=9 scheduling.max_lag=10", "scheduling.max_lag is given twice, as scheduling.max_lag and as max_lag"),
    ],
)
def test_what_is_wrong_ends_with_one_line(stream_rl: StreamRL, live: Path, assignment: str, message: str) -> None:
    answer = stream_rl("set", live, *assignment.split())
    assert (answer.code, answer.out) == (2, "")
    assert message in answer.err


def test_a_stopped_run_keeps_what_is_set_for_its_resume(stream_rl: StreamRL, stopped: Path) -> None:
    assert stream_rl("set", stopped, "run_ahead=1.5").code == 0

    async def resumed() -> float:
        with EmbeddedServer(stopped / "buffer") as server:
            async with await TrajectoryBuffer.connect(server.url, stopped.name) as buffer:
                await buffer.open_run(RULES)
                return (await buffer.snapshot()).rules.run_ahead

    assert asyncio.run(resumed()) == 1.5
