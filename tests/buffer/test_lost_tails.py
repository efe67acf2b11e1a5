"""Whatever Redis loses, and whenever: in the end each prompt was trained once, and the ledger says so."""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
from journal_builders import RULES, START, outcome, turn
from rewinding_server import RewindingServer

from stream_rl.buffer import LeasedSample, TrainerClaim, TrajectoryBuffer
from stream_rl.errors import LeaseLost
from stream_rl.producer.journal import BufferJournal
from stream_rl.sample import LedgerEntry, WeightVersion

STEPS = 6


@dataclass
class Story:
    """One run under random losses, as its only producer and its only trainer know it."""

    chance: random.Random
    server: RewindingServer
    buffer: TrajectoryBuffer
    claim: TrainerClaim
    ledger: dict[int, LedgerEntry] = field(default_factory=dict)
    prompts: dict[int, int] = field(default_factory=dict)
    playing: list[LeasedSample] = field(default_factory=list)
    saved: int = 0

    async def go_on(self) -> None:
        """One event; I7 holds behind each."""
        match self.chance.choices(["play", "train", "mark", "rewind", "checkpoint"], [12, 4, 2, 1, 1])[0]:
            case "play":
                await self.play()
            case "train":
                await self.train()
            case "mark":
                self.server.mark()
            case "rewind":
                self.server.rewind()
            case _ if self.ledger:
                # What is lost reaches no further back than the oldest checkpoint kept.
                self.server.mark()
                self.saved = len(self.ledger) - 1
                await self.buffer.checkpoints_kept(self.claim, self.saved)
        now = await self.buffer.snapshot()
        assert now.admitted == now.trained + now.filtered + now.dead_lettered + now.live

    async def train(self) -> None:
        taken = await self.buffer.take_step(self.claim, len(self.ledger) + 1)
        if isinstance(taken, LedgerEntry):
            self.ledger[taken.step] = taken
            self.prompts |= {g.index: g.prompt_index for g in await self.buffer.load_groups(taken.groups)}
            await self.buffer.engine_serving("engine-0", WeightVersion(taken.step))

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
            story = Story(random.Random(seed), server, buffer, await buffer.claim_trainer())
            server.mark()
            while len(story.ledger) < STEPS:
                await story.go_on()
            groups = [group for taken in story.ledger.values() for group in taken.groups]
            assert len(set(groups)) == 2 * STEPS
            assert sorted(story.prompts[group] for group in groups) == list(range(2 * STEPS))
            for step in range(story.saved + 1, STEPS + 1):
                assert await buffer.take_step(story.claim, step) == story.ledger[step]
