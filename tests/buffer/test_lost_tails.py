"""Whatever Redis loses, and whenever: in the end each prompt was trained once, and the ledger says so."""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
from journal_builders import RULES, START, accounts, outcome, turn
from rewinding_server import RewindingServer

from stream_rl.buffer import LeasedSample, TrainerClaim, TrajectoryBuffer
from stream_rl.errors import LeaseLost
from stream_rl.producer.journal import BufferJournal
from stream_rl.sample import LedgerEntry, WeightVersion

STEPS = 6
EVENTS = {"play": 12, "train": 4, "mark": 2, "rewind": 1, "checkpoint": 1, "die": 1}
"""What happens, and how often."""


@dataclass
class Story:
    """One run under random losses, as its only producer and its only trainer know it.

    What is lost reaches no further back than the last checkpoint, so that the trainer always finds one to start from.
    """

    chance: random.Random
    server: RewindingServer
    buffer: TrajectoryBuffer
    trainer: TrajectoryBuffer
    claim: TrainerClaim
    ledger: dict[int, LedgerEntry] = field(default_factory=dict)
    prompts: dict[int, int] = field(default_factory=dict)
    playing: list[LeasedSample] = field(default_factory=list)
    saved: int = 0

    async def go_on(self) -> None:
        """One event; I7 holds behind each."""
        match self.chance.choices([*EVENTS], [*EVENTS.values()])[0]:
            case "play":
                await self.play()
            case "train":
                await self.train()
            case "mark":
                self.server.mark()
            case "rewind":
                self.server.rewind()
            case "die":
                await self.die()
            case _ if self.ledger:
                self.server.mark()
                self.saved = len(self.ledger) - 1
                await self.trainer.checkpoints_kept(self.claim, self.saved)
        await accounts(self.buffer)

    async def train(self) -> None:
        """The next step; now and then Redis loses it before it is read."""
        step = len(self.ledger) + 1
        taken = await self.trainer.take_step(self.claim, step)
        if isinstance(taken, LedgerEntry):
            if self.chance.random() < 0.2:
                self.server.rewind()
            self.ledger[step] = taken
            await self.read(step)
            await self.trainer.engine_serving("engine-0", WeightVersion(step))

    async def read(self, step: int) -> None:
        """Reads a step that the ledger has, once its records are there."""
        while True:
            taken = await self.trainer.take_step(self.claim, step)
            if isinstance(taken, LedgerEntry):
                assert taken == self.ledger[step]
                self.prompts |= {g.index: g.prompt_index for g in await self.trainer.load_groups(taken.groups)}
                return
            assert taken.reason == "records_lost"
            await self.play()

    async def die(self) -> None:
        """The trainer starts again from its checkpoint, and replays as far as the ledger goes now."""
        await self.trainer.close()
        self.trainer = await TrajectoryBuffer.connect(self.server.url, "run")
        self.claim = await self.trainer.claim_trainer()
        assert self.claim.ledger_steps >= self.saved
        self.ledger = {step: one for step, one in self.ledger.items() if step <= self.claim.ledger_steps}
        for step in range(self.saved + 1, self.claim.ledger_steps + 1):
            await self.read(step)

    async def play(self) -> None:
        """Leases some, ends some, and forgets those that Redis gave to nobody's knowledge."""
        await self.buffer.heartbeat("p", 600)
        self.playing += await self.buffer.lease("p", self.chance.randint(1, 4))
        self.chance.shuffle(self.playing)
        self.playing = [sample for sample in self.playing if await self.is_played_on(sample)]

    async def is_played_on(self, sample: LeasedSample) -> bool:
        journal, todo = BufferJournal(self.buffer, sample, "test"), self.chance.choice(["end", "end", "fail", "keep"])
        try:
            if todo == "fail":
                await journal.fail(outcome().stop_reason, "")
            if todo == "end":
                records = [] if sample.start else [START]
                await journal.commit([*records, turn(len(sample.turns))], outcome(self.chance.random()))
        except LeaseLost:
            return False
        return todo == "keep"


@pytest.mark.parametrize("seed", range(6))
async def test_each_prompt_is_trained_once(tmp_path: Path, seed: int) -> None:
    with RewindingServer(tmp_path / "data") as server:
        async with await TrajectoryBuffer.connect(server.url, "run") as buffer:
            await buffer.open_run(replace(RULES, total_groups=2 * STEPS, max_refills_per_group=9))
            await buffer.engine_joined("engine-0", "u", 1)
            await buffer.engine_serving("engine-0", WeightVersion(0))
            trainer = await TrajectoryBuffer.connect(server.url, "run")
            story = Story(random.Random(seed), server, buffer, trainer, await trainer.claim_trainer())
            server.mark()
            while len(story.ledger) < STEPS:
                await story.go_on()
            groups = [group for taken in story.ledger.values() for group in taken.groups]
            assert len(set(groups)) == 2 * STEPS
            assert sorted(story.prompts[group] for group in groups) == list(range(2 * STEPS))
            await story.die()
            assert len(story.ledger) == STEPS
            await story.trainer.close()
