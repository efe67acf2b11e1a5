"""The buffer journal: re-sends what Redis lost, counts only what was acknowledged, refuses with its lease."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from prometheus_client import REGISTRY
from rollouts import generation

from stream_rl.buffer.records import LeasedSample, Outcome, SampleStart
from stream_rl.errors import JournalMismatch, LeaseLost
from stream_rl.metrics.turn_log import JsonLines, read
from stream_rl.producer.journal import BufferJournal
from stream_rl.sample import Lease, SampleId, Status, StopReason, Turn, WeightVersion

LEASE = Lease(SampleId(3, 1), 1, "nonce", "p")
START = SampleStart("guess", np.array([3, 7], np.int32))


class ForgetfulBuffer:
    """A journal that may lose its tail, and may refuse the lease."""

    def __init__(self) -> None:
        self.records: list[object] = []
        self.sent: list[tuple[int, int]] = []
        self.lost = False
        self.restarts = 0

    async def commit(self, lease, position, records, outcome=None):
        self.sent.append((position, len(records)))
        if self.lost:
            raise LeaseLost("lost")
        if position > len(self.records):
            raise JournalMismatch("shorter", len(self.records))
        self.records[position:] = records

    async def restart(self, lease):
        self.restarts += 1
        del self.records[1:]
        return lease


def turn(index: int) -> Turn:
    part = generation([7, 4], "stop", WeightVersion(2))
    return Turn(index, part.tokens, part.log_probs, np.array([5], np.int32), part.spans)


def counted(name: str, **labels: str) -> float:
    return REGISTRY.get_sample_value(f"stream_rl_{name}", labels) or 0.0


async def test_what_redis_lost_is_sent_again_from_the_producers_copy():
    buffer = ForgetfulBuffer()
    journal = BufferJournal(buffer, LeasedSample(LEASE, 0, 0), "journal-test")
    first, second, third = turn(0), turn(1), turn(2)
    await journal.commit([START, first])
    await journal.commit([second])
    del buffer.records[1:]

    await journal.commit([third])

    assert buffer.records == [START, first, second, third]
    assert buffer.sent[-2:] == [(3, 1), (1, 3)]


async def test_a_journal_that_is_longer_than_ours_is_no_reason_to_send_again():
    class Longer(ForgetfulBuffer):
        async def commit(self, lease, position, records, outcome=None):
            raise JournalMismatch("longer", position + 5)

    with pytest.raises(JournalMismatch):
        await BufferJournal(Longer(), LeasedSample(LEASE, 0, 0), "journal-test").commit([START])


async def test_a_refused_commit_is_counted_as_refused_and_as_nothing_else(tmp_path):
    buffer = ForgetfulBuffer()
    buffer.lost = True
    log = JsonLines(tmp_path / "turns.jsonl")
    journal = BufferJournal(buffer, LeasedSample(LEASE, 0, 0), "refused-test", log)
    refused = counted("commits_refused_total", reason="lease_lost")

    with pytest.raises(LeaseLost):
        await journal.commit([START, turn(0)], Outcome(Status.COMPLETED, StopReason.ENV_DONE, 1.0))

    assert counted("commits_refused_total", reason="lease_lost") == refused + 1
    assert counted("turn_env_seconds_count", environment="refused-test") == 0
    assert list(read(tmp_path / "turns.jsonl")) == []
    assert not journal.committing


async def test_an_acknowledged_turn_is_one_line_of_the_log(tmp_path):
    log = JsonLines(tmp_path / "turns.jsonl")
    journal = BufferJournal(ForgetfulBuffer(), LeasedSample(LEASE, 0, 0), "log-test", log)

    await journal.commit([START, turn(0)])
    await journal.commit([turn(1)], Outcome(Status.COMPLETED, StopReason.ENV_DONE, 1.0))

    lines = list(read(tmp_path / "turns.jsonl"))
    assert [(line["sample"], line["turn"], line["position"]) for line in lines] == [("3-1", 0, 1), ("3-1", 1, 2)]
    assert (lines[0]["generated"], lines[0]["observation"], lines[0]["versions"]) == (2, 1, ["2"])
    assert set(lines[0]) == {
        "time", "sample", "group", "index", "attempt", "turn", "complete", "position", "prompt", "generated",
        "observation",
        "versions", "generate_seconds", "queue_seconds", "env_seconds", "encode_seconds", "commit_seconds",
        "env_retries", "reward", "finish_reason", "environment",
    }  # fmt: skip
    assert counted("turn_env_seconds_count", environment="log-test") == 2


async def test_what_a_sample_repeats_is_counted_once_and_not_once_a_turn():
    journal = BufferJournal(ForgetfulBuffer(), LeasedSample(LEASE, 0, 0), "once-test")
    said = generation([4, 5] * 6, "stop", WeightVersion(2))
    again = replace(turn(0), generated=said.tokens, log_probs=said.log_probs, spans=said.spans)

    await journal.commit([START, again])
    assert counted("repetition_ratio_count", environment="once-test") == 0
    await journal.commit([turn(1)], Outcome(Status.TRUNCATED, StopReason.MAX_TURNS, 0.25))

    assert counted("repetition_ratio_count", environment="once-test") == 1
    assert counted("repetition_ratio_sum", environment="once-test") == pytest.approx(3 / 7)
    assert counted("turn_index_turns_total", environment="once-test", turn_index="1") == 1
    assert counted("first_action_seconds_count", environment="once-test") == 1


async def test_a_turn_of_several_records_is_counted_once_with_all_their_tokens():
    journal = BufferJournal(ForgetfulBuffer(), LeasedSample(LEASE, 0, 0), "pieces-test")
    piece = replace(turn(0), complete=False, observation=np.zeros(0, np.int32))

    await journal.commit([START, piece])
    await journal.commit([piece])
    await journal.commit([turn(0)])
    await journal.commit([replace(piece, index=1)], Outcome(Status.TRUNCATED, StopReason.DEADLINE, 0.0))

    assert counted("turn_env_seconds_count", environment="pieces-test") == 1
    assert counted("turn_generated_tokens_count", environment="pieces-test") == 2
    assert counted("turn_generated_tokens_sum", environment="pieces-test") == 8


async def test_a_restart_keeps_the_start_and_one_without_turns_is_not_sent():
    buffer = ForgetfulBuffer()
    journal = BufferJournal(buffer, LeasedSample(LEASE, 0, 0), "restart-test")
    await journal.restart()
    await journal.commit([START, turn(0)])
    await journal.restart()
    again = turn(0)
    await journal.commit([again])

    assert buffer.restarts == 1
    assert buffer.records == [START, again]
