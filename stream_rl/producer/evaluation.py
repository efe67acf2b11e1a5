"""How good the policy is: episodes on held-out prompts, kept in memory, outside admission and training metrics."""

from __future__ import annotations

import asyncio
import logging
import os
from dataclasses import dataclass

from stream_rl.buffer import EngineRecord, TrajectoryBuffer
from stream_rl.config import Config
from stream_rl.engine.fleet import Fleet
from stream_rl.errors import EngineUnavailable
from stream_rl.producer.cache_scope import cache_scope
from stream_rl.producer.journal import MemoryJournal
from stream_rl.producer.loading import Rollout, load_rollout, load_vocab_size
from stream_rl.producer.samples import new_sample, sampling_seed
from stream_rl.producer.turn_loop import Engines, Episode
from stream_rl.sample import Sample, SampleId, WeightVersion

__all__ = ["EvaluationResult", "evaluate", "evaluate_rollout"]

logger = logging.getLogger(__name__)

END_SECONDS = 10.0
"""How long episodes that were cut may take to close their environments."""


@dataclass(frozen=True, slots=True)
class EvaluationResult:
    """What was found, over the episodes that ended in time; failed ones are not scored.

    `version` is the oldest of the engines that served, None when that is unknown.
    """

    episodes: int
    mean_reward: float
    turns_mean: float
    version: WeightVersion | None = None


async def evaluate(config: Config, *, buffer_url: str) -> EvaluationResult:
    """Plays `evaluation.episodes` held-out prompts on the engines that the buffer lists.

    Raises:
        UserError: something that the settings name cannot be used.
        EngineUnavailable: no engine serves, or none answered within `evaluation.deadline`.
        BufferUnavailable: Redis cannot be reached.
    """
    rollout = load_rollout(config, held_out=True)
    serving = await _serving(config, buffer_url)
    timeout = min(config.engine.request_timeout, config.evaluation.deadline)
    fleet = Fleet(vocab_size=load_vocab_size(config.model), timeout=timeout, router=config.engine.router_url)
    version = min((engine.version for engine in serving if engine.version is not None), default=None)
    try:
        await fleet.refresh([(engine.engine_id, engine.url) for engine in serving])
        ended = await evaluate_rollout(rollout, fleet, version)
    finally:
        await fleet.close()
        rollout.close()
    if not ended:
        raise EngineUnavailable(
            f"no evaluation episode ended within evaluation.deadline={config.evaluation.deadline:g}"
        )
    return EvaluationResult(
        episodes=len(ended),
        mean_reward=sum(sample.reward or 0.0 for sample in ended) / len(ended),
        turns_mean=sum(sample.next_turn for sample in ended) / len(ended),
        version=version,
    )


async def evaluate_rollout(rollout: Rollout, engines: Engines, version: WeightVersion | None = None) -> list[Sample]:
    """The samples that ended before `evaluation.deadline`, failures left out; `version` is what the engines serve."""
    config = rollout.config
    scope = cache_scope(config, "evaluation", version.step if version else 0)
    slots = asyncio.Semaphore(config.producer.concurrency)

    async def play(number: int) -> Sample | None:
        row, sample_id = rollout.prompts.row(number), SampleId(number, 0)
        seed = sampling_seed(config.seed, sample_id)
        session_id = f"evaluation-{number}.{os.getpid()}"
        sample = new_sample(row, sample_id, seed, config.evaluation.temperature, session_id=session_id)
        journal = MemoryJournal()
        async with slots:
            await Episode(rollout, engines, journal, sample, row, scope=scope).run()
        return sample if journal.outcome else None

    tasks = [asyncio.create_task(play(number)) for number in range(config.evaluation.episodes)]
    if not tasks:
        return []
    done, late = await asyncio.wait(tasks, timeout=config.evaluation.deadline)
    for task in late:
        task.cancel()
    if late:
        logger.warning("%d evaluation episodes were cut by evaluation.deadline", len(late))
        await asyncio.wait(late, timeout=END_SECONDS)
    return [sample for task in tasks if task in done and (sample := task.result()) is not None]


async def _serving(config: Config, buffer_url: str) -> list[EngineRecord]:
    async with await TrajectoryBuffer.of(config, buffer_url) as buffer:
        serving = [engine for engine in await buffer.engines() if engine.state == "serving"]
    if not serving:
        raise EngineUnavailable("evaluation needs an engine that serves")
    return serving
