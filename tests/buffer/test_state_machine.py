"""The real server against the model: random and repeated calls, silent producers, zombies, failures, new trainers.

Clients and the server itself are killed between calls, replies are lost, and the server's clock jumps.
"""

from __future__ import annotations

import asyncio
import itertools
import math
from dataclasses import replace
from pathlib import Path

import pytest
from buffer_model import Model
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from journal_builders import START, outcome, turn
from machine_faults import PRODUCERS, Faults
from rewinding_server import RewindingServer

from stream_rl.buffer import RunRules, TrainerClaim, TrajectoryBuffer, Waiting
from stream_rl.buffer.records import Record
from stream_rl.errors import (
    JournalMismatch,
    LeaseLost,
    LedgerMismatch,
    NoTrainableBatch,
    TrainerSuperseded,
)
from stream_rl.sample import Lease, LedgerEntry, StopReason, WeightVersion

_runs = itertools.count()


class Buffer(Faults):
    """`leases` holds every lease ever given: most of them are zombies'."""

    @initialize(filtering=st.booleans(), total=st.integers(3, 10), refills=st.integers(0, 2), size=st.integers(1, 2))
    def open(self, filtering: bool, total: int, refills: int, size: int) -> None:
        rules = RunRules(size, 2, 1, 2, 2, filtering, refills, 3, total)
        self.model = Model(rules)
        self.runner = asyncio.Runner()
        self.name, self.lives = f"machine-{next(_runs)}", {"one": 0, "two": 0}
        self.one = self.run(TrajectoryBuffer.connect(self.server.url, self.name))
        self.two = self.run(TrajectoryBuffer.connect(self.server.url, self.name))
        self.kills = 0
        self.bounds: dict[int, int] = {}
        self.run(self.one.open_run(rules))
        self.claim: TrainerClaim = self.run(self.one.claim_trainer())
        self.leases: list[Lease] = []
        for producer in PRODUCERS:
            self.beat(producer)
        self.engine_serves("x", False)
        self.retired = 0
        self.lease("a", 3)

    def teardown(self) -> None:
        if hasattr(self, "runner"):
            self.run(self.one.close())
            self.run(self.two.close())
            self.runner.close()

    @rule(producer=st.sampled_from(PRODUCERS), count=st.integers(1, 5), reply_lost=st.booleans())
    def lease(self, producer: str, count: int, reply_lost: bool = False) -> None:
        buffer = self.buffer(producer)
        if reply_lost:
            self.lose_reply(buffer, buffer.lease(producer, count))
        got = self.run(buffer.lease(producer, count))
        given = self.model.lease(self.holder(producer), count)
        # Handed out again, they come in any order.
        self.model.expects(given, sorted(got, key=lambda s: [g.sample_id for g in given].index(s.lease.sample_id)))
        self.leases += [sample.lease for sample in got]

    def records(self, lease: Lease, data: st.DataObject) -> list[Record]:
        """What the holder would commit next: a start when there is none, and up to two turns."""
        journal = self.model.attempts[lease.sample_id].journal
        records: list[Record] = [] if journal else [START]
        done = self.model.attempts[lease.sample_id].turns
        for _ in range(data.draw(st.integers(0 if records else 1, 2))):
            complete = data.draw(st.booleans())
            records.append(turn(done, data.draw(st.integers(1, 3)), complete=complete))
            done += complete
        return records

    @rule(data=st.data(), producer=st.sampled_from(PRODUCERS), trains=st.booleans())
    def work(self, data: st.DataObject, producer: str, trains: bool) -> None:
        """Most of what happens in a run: samples are leased, played, mostly to their end, and trained."""
        self.beat(producer)
        self.lease(producer, 4)
        for lease in [lease for lease in self.leases if self.model.holds(lease)]:
            todo = data.draw(st.sampled_from(["leave", "commit", "finish", "finish", "finish", "fail"]))
            if todo == "fail":
                self.give_up(lease, "fail", 1)
            elif todo != "leave":
                self.commit_to(lease, data, todo == "finish", 0)
        if trains:
            self.take_step()

    @precondition(lambda self: self.leases)
    @rule(data=st.data(), ends=st.booleans(), slip=st.integers(0, 1))
    def commit(self, data: st.DataObject, ends: bool, slip: int) -> None:
        self.commit_to(data.draw(st.sampled_from(self.leases)), data, ends, slip)

    def commit_to(self, lease: Lease, data: st.DataObject, ends: bool, slip: int) -> None:
        sample = self.model.attempts[lease.sample_id]
        position, records = len(sample.journal) + slip, self.records(lease, data)
        if slip:
            records = [turn(sample.turns)]
        how = outcome(data.draw(st.sampled_from([0.0, 0.5]))) if ends else None
        held = self.model.holds(lease)
        buffer = self.buffer(lease.producer_id)
        try:
            for _ in range(data.draw(st.integers(1, 2))):
                self.run(buffer.commit(lease, position, records, how))
        except LeaseLost:
            assert not held
            self.model.refused += 1
        except JournalMismatch as error:
            assert (held, slip, error.expected) == (True, 1, len(sample.journal))  # noqa: PT017
        else:
            assert held
            assert not slip
            self.model.commit(lease, records, how)

    @precondition(lambda self: self.leases)
    @rule(data=st.data(), what=st.sampled_from(["fail", "restart"]), times=st.integers(1, 2))
    def fail_or_restart(self, data: st.DataObject, what: str, times: int) -> None:
        self.give_up(data.draw(st.sampled_from(self.leases)), what, times)

    def give_up(self, lease: Lease, what: str, times: int) -> None:
        held = self.model.holds(lease)
        done = what == "fail" and self.has_failed(lease)
        try:
            if what == "restart":
                renewed = self.run(self.buffer(lease.producer_id).restart(lease))
            else:
                for _ in range(times):
                    self.run(self.buffer(lease.producer_id).fail(lease, StopReason.ENV_FAILURE, "the world broke"))
        except LeaseLost:
            assert not held
            return
        assert held or done
        if what == "restart":
            self.model.restart(lease, renewed)
            self.leases.append(renewed)
        elif held:
            self.model.fail(lease)

    def has_failed(self, lease: Lease) -> bool:
        sample = self.model.attempts[lease.sample_id]
        return sample.state == "failed" and (sample.number, sample.nonce) == (lease.number, lease.nonce)

    @precondition(lambda self: self.leases)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        leases = data.draw(st.lists(st.sampled_from(self.leases), max_size=3))
        for lease in leases:
            self.run(self.buffer(lease.producer_id).release([lease]))
            if self.model.holds(lease):
                self.model.attempts[lease.sample_id].state = "returned"

    @rule(engine=st.sampled_from("xy"), leaves=st.booleans())
    def engine_serves(self, engine: str, leaves: bool) -> None:
        if leaves:
            self.run(self.one.engine_left(engine))
            self.model.engines.pop(engine, None)
            return
        self.run(self.one.engine_joined(engine, "u", 1))
        self.run(self.one.engine_serving(engine, WeightVersion(len(self.model.ledger))))
        self.run(self.one.engine_serving(engine, WeightVersion(len(self.model.ledger))))
        self.model.engines[engine] = len(self.model.ledger)

    @rule(run_ahead=st.sampled_from([0, 0.5, 1, 2]), slack=st.integers(0, 2), staleness=st.integers(0, 4))
    def settings_change(self, run_ahead: float, slack: int, staleness: int) -> None:
        lag = math.ceil(run_ahead) + slack
        values = {"run_ahead": run_ahead, "max_lag": lag, "max_staleness": min(staleness, lag)}
        self.run(self.two.set_live(values))
        self.model.rules = replace(self.model.rules, **values)  # type: ignore[arg-type]

    @invariant()
    def notes_the_bounds(self) -> None:
        """For each group, the largest max_lag in force since its admission."""
        if not hasattr(self, "model"):
            return
        lag = self.model.rules.max_lag
        for number in range(len(self.model.groups)):
            self.bounds[number] = max(self.bounds.get(number, 0), lag)

    @rule()
    def take_step(self) -> None:
        step = len(self.model.ledger) + 1
        expected = self.model.take_step()
        try:
            got = self.run(self.one.take_step(self.claim, step))
        except NoTrainableBatch:
            assert expected is None
            assert self.model.untrainable >= 3
            return
        if expected is None:
            assert isinstance(got, Waiting)
            _, state = self.model.scheduling
            assert (got.live, got.complete) == (len(state.live), len(state.complete))
            return
        assert got == LedgerEntry(step, expected, self.model.rules.max_staleness, self.model.rules.max_lag)
        for group in expected:
            assert step - 1 - self.model.groups[group].v0 <= self.bounds[group]
        assert self.run(self.one.take_step(self.claim, step)) == got
        for group in self.run(self.two.load_groups(got.groups)):
            model = self.model.groups[group.index]
            assert [sample.sample_id for sample in group.samples] == [s.sample_id for s in model.samples]
            for sample, expected_sample in zip(group.samples, model.samples, strict=True):
                sample.check()
                assert [t.action for t in sample.turns] == [t.action for t in expected_sample.journal[1:]]  # type: ignore[union-attr]

    @precondition(lambda self: self.model.ledger)
    @rule(data=st.data())
    def a_new_trainer_replays(self, data: st.DataObject) -> None:
        old, self.claim = self.claim, self.run(self.two.claim_trainer())
        assert self.claim == TrainerClaim(old.incarnation + 1, len(self.model.ledger))
        self.model.asserted = True
        step = data.draw(st.integers(1, len(self.model.ledger)))
        with pytest.raises(TrainerSuperseded):
            self.run(self.one.take_step(old, step))
        if step > self.retired:
            assert self.run(self.two.take_step(self.claim, step)).groups == self.model.ledger[step]
        else:
            with pytest.raises(LedgerMismatch):
                self.run(self.two.take_step(self.claim, step))

    @precondition(lambda self: self.model.ledger)
    @rule(data=st.data())
    def a_checkpoint_is_kept(self, data: st.DataObject) -> None:
        step = data.draw(st.integers(0, len(self.model.ledger)))
        self.run(self.one.checkpoints_kept(self.claim, step))
        self.model.asserted = True
        self.retired = max(self.retired, step)
        for kept in range(self.retired + 1, len(self.model.ledger) + 1):
            assert len(self.run(self.two.load_groups(self.model.ledger[kept]))) == len(self.model.ledger[kept])

    @invariant()
    def agrees(self) -> None:
        if not hasattr(self, "model"):
            return
        model, real = self.model, self.run(self.one.snapshot())
        assert real.admitted == real.trained + real.filtered + real.dead_lettered + real.live
        assert (real.admitted, real.trained) == (len(model.groups), model.counted("trained"))
        assert (real.filtered, real.dead_lettered) == (model.counted("filtered"), model.counted("dead"))
        assert real.complete == model.counted("complete")
        states = [len(model.in_state(state)) for state in ("queued", "leased", "returned")]
        assert [real.pending, real.leased, real.resumable] == states
        assert (real.committed_turns, real.refills) == (model.committed_turns, model.refills)
        assert (real.resumes, real.refused_commits) == (model.resumes, model.refused)
        assert real.outcomes == len(model.ended)

    @invariant()
    def every_turn_is_somewhere(self) -> None:
        if not hasattr(self, "model"):
            return
        begun = self.model.in_state("leased", "returned")
        assert self.run(self.one.journal_turns()) == {str(sample.sample_id): sample.turns for sample in begun}
        ended = self.run(self.one.outcomes(10_000))
        assert sorted((o.kind, o.sample, o.turns) for o in ended) == sorted(self.model.ended)
        assert [o.number for o in ended] == list(range(1, len(ended) + 1))


def test_the_buffer_agrees_with_its_model(tmp_path: Path) -> None:
    with RewindingServer(tmp_path / "data") as server:
        Buffer.server = server
        run_state_machine_as_test(
            Buffer,
            settings=settings(
                max_examples=40,
                stateful_step_count=60,
                deadline=None,
                derandomize=True,
                suppress_health_check=list(HealthCheck),
            ),
        )
