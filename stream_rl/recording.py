"""What is written down about a run, while it goes on and at its end.

    run.json ─► every heartbeat: progress, metrics, ended samples -> samples.jsonl ─► summary.json, report.html

Ended samples are written before the buffer drops them: a death in between writes some twice, with the same number, and
loses none.
"""

from __future__ import annotations

import asyncio
import math
import os
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any, Protocol

from stream_rl.buffer import RunSnapshot, TrajectoryBuffer
from stream_rl.config import Config
from stream_rl.metrics import catalog
from stream_rl.metrics.announcement import RunAnnouncement
from stream_rl.metrics.labels import environment_label
from stream_rl.metrics.report import write_report
from stream_rl.metrics.run_figures import RunFigures
from stream_rl.metrics.run_folder import read_summary
from stream_rl.metrics.step_sinks import step_sinks
from stream_rl.metrics.summary import RunFacts, summarise
from stream_rl.metrics.turn_log import JsonLines, Tail, read

__all__ = ["Progress", "RunRecorder"]

OUTCOMES_PER_CALL = 1000
SECONDS_BETWEEN_MEMORY_LOOKS = 5.0


class Progress(Protocol):
    """What the command line shows while a run goes on."""

    def update(self, snapshot: RunSnapshot, steps: Sequence[Mapping[str, Any]]) -> None:
        """Called every `supervision.heartbeat`, with the lines of steps.jsonl written since the last call."""

    def say(self, line: str) -> None:
        """One thing that happened: a start, a death, a recovery."""


class RunRecorder:
    """The run folder's writer on the supervisor's side."""

    def __init__(self, config: Config, buffer: TrajectoryBuffer, progress: Progress) -> None:
        self._config = config
        self._buffer = buffer
        self._progress = progress
        self._samples = JsonLines(config.folder / "samples.jsonl")
        self._changes = JsonLines(config.folder / "changes.jsonl")
        self._changes_known = {(change["number"], change["time"]) for change in read(config.folder / "changes.jsonl")}
        self._steps = Tail(config.folder / "steps.jsonl")
        self._figures = RunFigures(environment_label(config), config.rollout.group_size, step_sinks(config))
        self._figures.ended(read(config.folder / "samples.jsonl"))
        self._dead_letters = -1
        self._memory_known = -math.inf
        self._started = time.monotonic()
        self.ledger_steps = 0
        """Steps in the ledger at the last look."""

    def announce(self, buffer_url: str, metrics_url: str, *, resume: bool) -> None:
        """Writes run.json; a resumed run goes on counting its seconds."""
        before = self._seconds_before() if resume else 0.0
        self._started = time.monotonic() - before
        RunAnnouncement(
            pid=os.getpid(),
            started=time.time(),
            seconds_before=before,
            buffer_url=buffer_url,
            metrics_url=metrics_url,
        ).write(self._config.folder)

    def _seconds_before(self) -> float:
        """Seconds of all earlier starts; one that was killed wrote no summary and ends with the last line it logged."""
        folder = self._config.folder
        summarised = float(read_summary(folder).get("wall_seconds", 0.0))
        last = RunAnnouncement.read(folder)
        if last is None:
            return summarised
        logs = [folder / "steps.jsonl", folder / "samples.jsonl"]
        logged = max((log.stat().st_mtime for log in logs if log.exists()), default=last.started)
        return max(summarised, last.seconds_before + logged - last.started)

    async def watch(self) -> None:
        """Looks every `supervision.heartbeat`, until it is cancelled."""
        while True:
            await self._export(await self.look())
            await self.record_outcomes()
            await asyncio.sleep(self._config.supervision.heartbeat)

    async def record_outcomes(self) -> None:
        """Moves the ends of samples from the buffer to samples.jsonl."""
        while outcomes := await self._buffer.outcomes(OUTCOMES_PER_CALL):
            self._samples.extend(outcomes)
            self._figures.ended(asdict(outcome) for outcome in outcomes)
            await self._buffer.trim_outcomes(outcomes[-1].number)

    async def summarise(self, eval_reward: float | None) -> dict[str, Any]:
        """Writes summary.json and report.html; the former's figures."""
        snapshot = await self.look()
        facts = RunFacts(
            recoveries=snapshot.recoveries,
            committed_turns=snapshot.committed_turns,
            journal_turns=await self._buffer.journal_turns(),
            eval_reward=eval_reward,
            wall_seconds=time.monotonic() - self._started,
        )
        summary = summarise(self._config.folder, facts)
        write_report(self._config.folder)
        self._figures.close()
        return summary

    async def look(self) -> RunSnapshot:
        """The run now, shown to `progress`."""
        snapshot = await self._buffer.snapshot()
        self.ledger_steps = snapshot.ledger_steps
        await self._record_changes()
        steps = self._steps.new()
        self._figures.stepped(steps)
        self._progress.update(snapshot, steps)
        return snapshot

    async def _record_changes(self) -> None:
        """Writes new entries of the audit list of settings to changes.jsonl, and says them."""
        for change in await self._buffer.setting_changes():
            if (change.number, change.time) in self._changes_known:
                continue
            self._changes.append(change)
            self._changes_known.add((change.number, change.time))
            self._progress.say(f"{change.setting} was changed from {change.old} to {change.new} ({change.by})")

    async def _export(self, snapshot: RunSnapshot) -> None:
        self._figures.seen(snapshot)
        if snapshot.dead_lettered != self._dead_letters:
            letters = await self._buffer.dead_letters()
            self._figures.given_up(Counter(letter.stop_reason for letter in letters))
            self._dead_letters = snapshot.dead_lettered
        if time.monotonic() - self._memory_known > SECONDS_BETWEEN_MEMORY_LOOKS:
            self._memory_known = time.monotonic()
            _export_memory(await self._buffer.server_facts())


def _export_memory(facts: Mapping[str, str]) -> None:
    """Without a limit of its own, Redis may take what the machine has."""
    limit = float(facts.get("maxmemory", 0)) or float(facts.get("total_system_memory", 0))
    catalog.REDIS_MEMORY_BYTES.set(float(facts["used_memory"]), kind="used")
    catalog.REDIS_MEMORY_BYTES.set(limit, kind="limit")
