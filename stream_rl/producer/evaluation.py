"""How good the policy is: episodes on held-out prompts, kept in memory, outside admission and training metrics.

After the last step they are spread over all engines. Before it they are all played on one that the trainer has pinned:
its version stays as it is until it is released, while the other engines go on.
"""

from __future__ import annotations

import asyncio
import logging
import math
import os
import time
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass

from stream_rl.buffer import EngineRecord, TrajectoryBuffer
from stream_rl.config import Config
from stream_rl.engine.fleet import Fleet
from stream_rl.errors import EngineUnavailable
from stream_rl.metrics.turn_log import JsonLines
from stream_rl.producer.cache_scope import cache_scope
from stream_rl.producer.engines import Engines
from stream_rl.producer.journal import MemoryJournal
from stream_rl.producer.loading import Rollout, load_rollout, load_vocab_size
from stream_rl.producer.samples import new_sample, sampling_seed
from stream_rl.producer.turn_loop import Episode
from stream_rl.sample import Sample, SampleId, WeightVersion

__all__ = ["EvaluationResult", "evaluate", "evaluate_rollout", "pass_at"]

logger = logging.getLogger(__name__)

END_SECONDS = 10.0
"""How long episodes that were cut may take to close their environments."""


@dataclass(frozen=True, slots=True)
class EvaluationResult:
    """What was found, over the episodes that ended in time; failed ones are not scored.

    version      the oldest of the engines that served when it began, None when that is unknown
    versions     all that wrote a token: this one alone where the engine was pinned
    pass_at_1    share of episodes whose reward is at least `evaluation.pass_reward`
    pass_at_k    share of prompts solved in `evaluation.samples` tries, of those whose episodes all ended; None if none
    """

    episodes: int
    mean_reward: float
    turns_mean: float
    version: WeightVersion | None = None
    versions: tuple[str, ...] = ()
    pass_at_1: float = 0.0
    pass_at_k: float | None = None
    seconds: float = 0.0


async def evaluate(config: Config, *, buffer_url: str, engine_id: str | None = None) -> EvaluationResult:
    """Plays `evaluation.episodes` held-out prompts and writes what was found as a line of evaluations.jsonl.

    Args:
        config: the run's settings.
        buffer_url: where the run's Redis is.
        engine_id: the engine to play on, which is pinned; None: all that serve.

    Raises:
        UserError: something that the settings name cannot be used.
        EngineUnavailable: no engine serves, or none answered within `evaluation.deadline`.
        BufferUnavailable: Redis cannot be reached.
    """
    started = time.monotonic()
    rollout = load_rollout(config, held_out=True)
    engines = await _engines(config, buffer_url, engine_id)
    timeout = min(config.engine.request_timeout, config.evaluation.deadline)
    router = None if engine_id else config.engine.router_url
    fleet = Fleet(vocab_size=load_vocab_size(config.model), timeout=timeout, router=router)
    version = min((known for engine in engines if (known := engine.pinned or engine.version)), default=None)
    try:
        await fleet.refresh([(engine.engine_id, engine.url) for engine in engines])
        ended = await evaluate_rollout(rollout, fleet, version)
    finally:
        await fleet.close()
        rollout.close()
    if not ended:
        raise EngineUnavailable(
            f"no evaluation episode ended within evaluation.deadline={config.evaluation.deadline:g}"
        )
    result = _result(config, ended, version, time.monotonic() - started)
    _write(config, result)
    return result


def pass_at(tries: int, outcomes: Iterable[Sequence[bool]]) -> float | None:
    """The chance that `tries` of a prompt's episodes have one that solved it, in the mean over prompts.

    Args:
        tries: k.
        outcomes: of each prompt with at least k episodes, which of them solved it; others are left out.

    Returns:
        The unbiased estimate, 1 - C(n - c, k) / C(n, k) for c of n (Chen et al. 2021, "Evaluating large language models
        trained on code", equation 1); None without a prompt.
    """
    chances = [
        1.0 - math.comb(len(solved) - sum(solved), tries) / math.comb(len(solved), tries)
        for solved in outcomes
        if len(solved) >= tries
    ]
    return sum(chances) / len(chances) if chances else None


async def evaluate_rollout(rollout: Rollout, engines: Engines, version: WeightVersion | None = None) -> list[Sample]:
    """The samples that ended before `evaluation.deadline`, failures left out; `version` is what the engines serve."""
    config = rollout.config
    scope = cache_scope(config, "evaluation", version.step if version else 0)
    slots = asyncio.Semaphore(config.producer.concurrency)

    async def play(number: int) -> Sample | None:
        prompt, index = divmod(number, config.evaluation.samples)
        row, sample_id = rollout.prompts.row(prompt), SampleId(prompt, index)
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


def _result(config: Config, ended: Sequence[Sample], version: WeightVersion | None, seconds: float) -> EvaluationResult:
    solved: dict[int, list[bool]] = defaultdict(list)
    for sample in ended:
        solved[sample.group_index].append((sample.reward or 0.0) >= config.evaluation.pass_reward)
    return EvaluationResult(
        episodes=len(ended),
        mean_reward=sum(sample.reward or 0.0 for sample in ended) / len(ended),
        turns_mean=sum(sample.next_turn for sample in ended) / len(ended),
        version=version,
        versions=tuple(sorted({str(span.version) for sample in ended for turn in sample.turns for span in turn.spans})),
        pass_at_1=sum(map(sum, solved.values())) / len(ended),
        pass_at_k=pass_at(config.evaluation.samples, solved.values()),
        seconds=seconds,
    )


def _write(config: Config, result: EvaluationResult) -> None:
    version = None if result.version is None else str(result.version)
    step = None if result.version is None else result.version.step
    record = {**asdict(result), "version": version, "step": step, "samples": config.evaluation.samples}
    JsonLines(config.folder / "evaluations.jsonl").append({"time": time.time(), **record})


async def _engines(config: Config, buffer_url: str, engine_id: str | None) -> list[EngineRecord]:
    async with await TrajectoryBuffer.of(config, buffer_url) as buffer:
        known = await buffer.engines()
    if engine_id is None:
        chosen = [engine for engine in known if engine.state == "serving"]
    else:
        chosen = [engine for engine in known if engine.engine_id == engine_id and engine.pinned is not None]
    if not chosen:
        raise EngineUnavailable(
            "evaluation needs an engine that serves" if engine_id is None else f"{engine_id} is pinned no more"
        )
    return chosen
