"""The trajectory buffer: every turn durable, every group trained exactly once. The only room that knows Redis."""

from stream_rl.buffer.embedded import EmbeddedServer
from stream_rl.buffer.live_settings import LIVE_SETTINGS, SettingChange
from stream_rl.buffer.operator_calls import HeldGroup, HeldSample, Requeued
from stream_rl.buffer.records import (
    DeadLetter,
    EngineRecord,
    LeasedSample,
    Outcome,
    OutcomeRecord,
    ProcessRecord,
    Record,
    RunRules,
    RunSnapshot,
    RunState,
    SampleStart,
    TrainerClaim,
    Waiting,
)
from stream_rl.buffer.trainer_calls import FinishedSample
from stream_rl.buffer.trajectory_buffer import TrajectoryBuffer

__all__ = [
    "LIVE_SETTINGS", "DeadLetter", "EmbeddedServer", "EngineRecord", "FinishedSample", "HeldGroup", "HeldSample",
    "LeasedSample", "Outcome", "OutcomeRecord", "ProcessRecord", "Record", "Requeued", "RunRules", "RunSnapshot",
    "RunState", "SampleStart", "SettingChange", "TrainerClaim", "TrajectoryBuffer", "Waiting",
]  # fmt: skip
