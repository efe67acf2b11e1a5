"""The buffer's state machine once more, in plain Python: what the real one must agree with after every call."""

from __future__ import annotations

from dataclasses import dataclass, field

from stream_rl.buffer import LeasedSample, Outcome, RunRules
from stream_rl.buffer.records import Record
from stream_rl.sample import Lease, SampleId, Turn
from stream_rl.scheduling import Knobs, SchedulingState, choose_batch, may_admit


@dataclass
class ModelSample:
    """One attempt: what state it is in, and the journal that was acknowledged."""

    sample_id: SampleId
    state: str = "queued"
    number: int = 0
    nonce: str = ""
    holder: str = ""
    journal: list[Record] = field(default_factory=list)
    outcome: Outcome | None = None

    @property
    def turns(self) -> int:
        return sum(isinstance(record, Turn) and record.complete for record in self.journal)


@dataclass
class ModelGroup:
    """One group and the newest attempt of each sibling."""

    v0: int
    samples: list[ModelSample]
    state: str = "live"
    refills: int = 0


@dataclass
class Model:
    """One run. `attempts` has every attempt ever made, so that zombies find theirs.

    `clock` is the server's, in hours, of which only jumps count; `ends` says when each holder falls silent, which the
    next lease notices. After a restart nothing is admitted until the trainer has spoken (`asserted`), and the first
    lease gives every holder its whole term again (`unheard`).
    """

    rules: RunRules
    engines: dict[str, int] = field(default_factory=dict)
    groups: list[ModelGroup] = field(default_factory=list)
    attempts: dict[SampleId, ModelSample] = field(default_factory=dict)
    clock: int = 0
    ends: dict[str, float] = field(default_factory=dict)
    terms: dict[str, float] = field(default_factory=dict)
    ledger: dict[int, tuple[int, ...]] = field(default_factory=dict)
    ended: list[tuple[str, str, int]] = field(default_factory=list)
    committed_turns: int = 0
    refused: int = 0
    refills: int = 0
    resumes: int = 0
    untrainable: int = 0
    asserted: bool = True
    unheard: bool = False

    def counted(self, *states: str) -> int:
        return sum(group.state in states for group in self.groups)

    def in_state(self, *states: str) -> list[ModelSample]:
        """The attempts in these states, oldest group first, as a sorted set orders them."""
        found = [sample for sample in self.attempts.values() if sample.state in states]
        return sorted(found, key=lambda sample: (sample.sample_id.group, str(sample.sample_id)))

    @property
    def scheduling(self) -> tuple[Knobs, SchedulingState]:
        live = {number: g.v0 for number, g in enumerate(self.groups) if g.state in ("live", "complete")}
        complete = [number for number, group in enumerate(self.groups) if group.state == "complete"]
        knobs = Knobs(self.rules.groups_per_step, self.rules.run_ahead, self.rules.max_lag)
        return knobs, SchedulingState(len(self.ledger), min(self.engines.values(), default=None), live, complete)

    # What the calls do

    def beat(self, holder: str, term: float) -> None:
        self.ends[holder], self.terms[holder] = self.clock + term, term

    def restart_server(self) -> None:
        self.asserted, self.unheard = False, True

    def lease(self, holder: str, count: int) -> list[ModelSample]:
        if self.unheard:
            self.ends = {known: max(end, self.clock + self.terms[known]) for known, end in self.ends.items()}
            self.unheard = False
        silent = {known for known, end in self.ends.items() if end <= self.clock}
        for sample in self.in_state("leased"):
            if sample.holder in silent:
                sample.state = "returned"
        for gone in silent:
            del self.ends[gone]
        if holder not in self.ends:
            return []
        given = self.in_state("returned")[:count]
        given += self.in_state("queued")[: count - len(given)]
        while len(given) < count and self.asserted and self._may_admit():
            given += self._admit()[: count - len(given)]
        for sample in given:
            sample.state, sample.holder, sample.number = "leased", holder, sample.number + 1
            self.resumes += bool(sample.journal)
        return given

    def _may_admit(self) -> bool:
        usable = len(self.groups) - self.counted("filtered", "dead")
        return usable < self.rules.total_groups and may_admit(*self.scheduling)

    def _admit(self) -> list[ModelSample]:
        number = len(self.groups)
        samples = [ModelSample(SampleId(number, index)) for index in range(self.rules.group_size)]
        self.attempts |= {sample.sample_id: sample for sample in samples}
        self.groups.append(ModelGroup(min(self.engines.values()), samples))
        return samples

    def holds(self, lease: Lease) -> bool:
        sample = self.attempts[lease.sample_id]
        return sample.state == "leased" and (sample.number, sample.nonce) == (lease.number, lease.nonce)

    def commit(self, lease: Lease, records: list[Record], outcome: Outcome | None) -> None:
        sample = self.attempts[lease.sample_id]
        turns = sample.turns
        sample.journal += records
        self.committed_turns += sample.turns - turns
        if outcome is None:
            return
        sample.state, sample.outcome = "finished", outcome
        self.ended.append(("finished", str(lease.sample_id), sample.turns))
        group = self.groups[lease.sample_id.group]
        rewards = [sibling.outcome.reward for sibling in group.samples if sibling.outcome]
        if len(rewards) < self.rules.group_size:
            return
        filtered = self.rules.filter_zero_variance and len(set(rewards)) == 1
        group.state = "filtered" if filtered else "complete"
        self.untrainable = self.untrainable + 1 if filtered else 0

    def restart(self, lease: Lease, renewed: Lease) -> None:
        sample = self.attempts[lease.sample_id]
        sample.nonce = renewed.nonce
        if len(sample.journal) > 1:
            self.ended.append(("restarted", str(lease.sample_id), sample.turns))
            del sample.journal[1:]

    def fail(self, lease: Lease) -> None:
        sample = self.attempts[lease.sample_id]
        group = self.groups[lease.sample_id.group]
        sample.state = "failed"
        self.ended.append(("failed", str(lease.sample_id), sample.turns))
        if group.refills < self.rules.max_refills_per_group:
            group.refills += 1
            self.refills += 1
            old = sample.sample_id
            fresh = ModelSample(SampleId(old.group, old.index, old.attempt + 1))
            group.samples[old.index] = self.attempts[fresh.sample_id] = fresh
            return
        group.state = "dead"
        self.untrainable += 1
        for sibling in group.samples:
            if sibling.state not in ("finished", "failed"):
                if sibling.number:
                    self.ended.append(("failed", str(sibling.sample_id), sibling.turns))
                sibling.state = "dropped"

    def take_step(self) -> tuple[int, ...] | None:
        self.asserted = True
        batch = choose_batch(*self.scheduling)
        if batch:
            self.ledger[len(self.ledger) + 1] = batch
            for number in batch:
                self.groups[number].state = "trained"
        return batch

    def expects(self, given: list[ModelSample], got: list[LeasedSample]) -> None:
        """Holds a real lease call's answer against the model's, and keeps its nonce."""
        by_id = {sample.lease.sample_id: sample for sample in got}
        assert [sample.lease.sample_id for sample in got] == [sample.sample_id for sample in given]
        for sample in given:
            real = by_id[sample.sample_id]
            assert real.lease.number == sample.number
            assert real.position == len(sample.journal)
            assert (real.v0, real.prompt_index) == (self.groups[sample.sample_id.group].v0, sample.sample_id.group)
            assert [turn.action for turn in real.turns] == [record.action for record in sample.journal[1:]]  # type: ignore[union-attr]
            sample.nonce = real.lease.nonce
