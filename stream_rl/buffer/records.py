"""What goes into the buffer and comes out of it: plain frozen data, no I/O."""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from stream_rl.config import Config
from stream_rl.sample import Int32, Lease, Status, StopReason, Turn, WeightVersion

__all__ = [
    "MEBI",
    "RECOVERY_KINDS",
    "UNLIMITED",
    "DeadLetter",
    "EngineRecord",
    "LeasedSample",
    "Outcome",
    "OutcomeRecord",
    "ProcessRecord",
    "Record",
    "RecoveryKind",
    "RunRules",
    "RunSnapshot",
    "RunState",
    "SampleStart",
    "TrainerClaim",
    "Waiting",
]

MEBI = 2**20
UNLIMITED = 2**53

RecoveryKind = Literal["producer", "engine", "trainer", "redis"]
RECOVERY_KINDS: tuple[RecoveryKind, ...] = get_args(RecoveryKind)


class RunState(enum.StrEnum):
    """What producers are asked to do: go on, commit and release what they hold, or exit."""

    RUNNING = "running"
    DRAINING = "draining"
    FINISHED = "finished"


@dataclass(frozen=True, slots=True)
class SampleStart:
    """Record 0 of a sample's journal: all that a resume needs besides the turns.

    `prompt_tokens` int32 (p,); `label` and `metadata` must be JSON values. `images` are the names of the images that
    the prompt shows, in order, and `image_tokens` how many of its tokens stand for each; `prompt` has them by name.
    """

    prompt: str | Sequence[Mapping[str, Any]]
    prompt_tokens: Int32
    temperature: float = 1.0
    sampling_seed: int = 0
    label: Any = None
    metadata: Mapping[str, Any] = field(default_factory=dict)
    images: tuple[str, ...] = ()
    image_tokens: tuple[int, ...] = ()


Record = SampleStart | Turn


@dataclass(frozen=True, slots=True)
class LeasedSample:
    """One sample handed to a producer, with everything committed so far; `start` is None for one never begun.

    `returned` says why it came back from its last producer: released, expired, or forgotten; empty for one never held.
    """

    lease: Lease
    prompt_index: int
    v0: int
    start: SampleStart | None = None
    turns: tuple[Turn, ...] = ()
    returned: str = ""

    @property
    def position(self) -> int:
        """The number of records in the journal: where the next commit appends."""
        return len(self.turns) + (self.start is not None)


@dataclass(frozen=True, slots=True)
class Outcome:
    """How an episode ended. Failures have no outcome: they go through `fail`. Raises ValueError on any other status."""

    status: Status
    stop_reason: StopReason
    reward: float

    def __post_init__(self) -> None:
        if self.status not in (Status.COMPLETED, Status.TRUNCATED):
            raise ValueError(f"an outcome is completed or truncated, not {self.status}")
        if not abs(self.reward) < float("inf"):
            raise ValueError(f"reward {self.reward} is not a finite number")


@dataclass(frozen=True, slots=True)
class RunRules:
    """The settings that the buffer itself enforces; config.py says what each one means."""

    groups_per_step: int
    group_size: int
    run_ahead: float = 3
    max_staleness: int = 8
    max_lag: int = 12
    filter_zero_variance: bool = False
    max_refills_per_group: int = 8
    max_untrainable_completions: int = 4096
    total_groups: int = UNLIMITED
    max_journal_bytes: int = UNLIMITED
    max_ready_groups: int = UNLIMITED
    max_leased_samples: int = UNLIMITED
    concurrency: int = 0
    """Samples that one producer may hold; 0: as each producer's own settings say."""

    @classmethod
    def of(cls, config: Config) -> RunRules:
        """The rules that a run's settings ask for."""
        return cls(
            groups_per_step=config.rollout.groups_per_step,
            group_size=config.rollout.group_size,
            run_ahead=config.scheduling.run_ahead,
            max_staleness=config.scheduling.max_staleness,
            max_lag=config.scheduling.max_lag,
            filter_zero_variance=config.scheduling.filter_zero_variance,
            max_refills_per_group=config.producer.max_refills_per_group,
            max_untrainable_completions=config.scheduling.max_untrainable_completions,
            total_groups=config.trainer.steps * config.rollout.groups_per_step,
            max_journal_bytes=(config.buffer.max_journal_mib or UNLIMITED // MEBI) * MEBI,
            max_ready_groups=config.buffer.max_ready_groups or UNLIMITED,
            max_leased_samples=config.buffer.max_leased_samples or UNLIMITED,
            concurrency=config.producer.concurrency,
        )


@dataclass(frozen=True, slots=True)
class EngineRecord:
    """One SGLang server. It takes requests only when it serves; a joining one has no version yet.

    `pinned` is the version that an evaluation plays on, at which the engine stays meanwhile.
    """

    engine_id: str
    url: str
    pid: int
    state: Literal["joining", "serving"]
    version: WeightVersion | None = None
    pinned: WeightVersion | None = None


@dataclass(frozen=True, slots=True)
class ProcessRecord:
    """One process of the run and where its metrics are."""

    name: str
    kind: Literal["supervisor", "producer", "trainer", "redis"]
    host: str
    pid: int
    metrics_url: str = ""


@dataclass(frozen=True, slots=True)
class TrainerClaim:
    """The right to take steps: incarnation 0 for a run's first trainer, one more for each that follows.

    `nonce` is the fence: after Redis lost a claim, another one may get its number again.
    """

    incarnation: int
    ledger_steps: int
    nonce: str = field(default="", compare=False)


@dataclass(frozen=True, slots=True)
class Waiting:
    """Why no batch can be taken now.

    not_enough_complete   fewer than groups_per_step groups are complete
    lag_rule              a group that is due soon is not complete: training others first could break the lag bound
    records_lost          the step is in the ledger, and what Redis lost of its groups is being played again
    """

    reason: Literal["not_enough_complete", "lag_rule", "records_lost"]
    live: int
    complete: int
    engines_joining: int


@dataclass(frozen=True, slots=True)
class OutcomeRecord:
    """One ended attempt, as written to samples.jsonl. `time` is the server's, in seconds; `number` counts from 1."""

    number: int
    time: float
    sample: str
    group: int
    index: int
    attempt: int
    kind: Literal["finished", "failed", "restarted"]
    status: str
    stop_reason: str
    reward: float | None
    turns: int
    response_length: int
    generated: int
    v0: int


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A group given up: why, and which of its siblings had finished."""

    group: int
    v0: int
    prompt_index: int
    stop_reason: str
    detail: str
    finished: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class RunSnapshot:
    """The run at one instant. I7 holds in it: admitted == trained + filtered + dead_lettered + live.

    `complete` counts the live groups that wait for a step; `oldest_v0` is None when no group is live, `engine_version`
    (the oldest on any serving engine) when no engine serves. `oldest_partial_seconds` is the longest that an unfinished
    sample has waited for a producer, by the server's clock.
    """

    state: RunState
    rules: RunRules
    ledger_steps: int
    incarnation: int
    admitted: int
    trained: int
    filtered: int
    dead_lettered: int
    live: int
    complete: int
    pending: int
    leased: int
    resumable: int
    producers: int
    committed_turns: int
    journal_bytes: int
    refills: int
    resumes: int
    refused_commits: int
    outcomes: int
    recoveries: Mapping[str, int]
    oldest_v0: int | None
    engine_version: int | None
    engines: tuple[EngineRecord, ...]
    processes: tuple[ProcessRecord, ...]
    oldest_partial_seconds: float = 0.0
