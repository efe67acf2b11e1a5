"""Every failure that has a name.

StreamRLError
├── UserError                 something the user wrote; the message names the setting and the fix (exit code 2)
│   ├── ConfigError           unknown key, wrong value, settings that contradict each other
│   ├── ModelError            missing model, tokenizer without a chat template, template that cannot be appended to
│   │   └── AttentionUnsupported  the model's attention does what packed samples' attention does not
│   ├── EnvironmentLoadError  no such environment module, or it has no build_env
│   ├── AgentLoadError        no such agent loop, or it has no run
│   └── DataError             missing dataset, row without a prompt, prompt beyond its budget, damaged log of a run
├── BufferError
│   ├── BufferUnavailable     Redis cannot be reached within its deadline
│   ├── BufferFull            no room for too long: Redis refuses writes, or a limit of the settings is reached
│   ├── BufferInUse           another embedded server has the data folder
│   ├── LeaseLost             a newer lease exists for this sample; the write was refused
│   ├── JournalMismatch       the commit names another record than the journal expects next
│   ├── ImageMissing          the commit names an image that is not in the buffer
│   ├── LedgerMismatch        the ledger does not reach to the step asked for, or holds it no more
│   ├── RecordsLost           a group's records are not there, or not all of them: Redis lost its newest writes
│   └── CorruptRecord         a stored record does not decode: magic, version, size or dtype
├── EngineError
│   ├── EngineRejected        4xx: the request itself is wrong; never retried
│   ├── PromptMismatch        the engine read another number of tokens than it was sent: it wrote the prompt anew
│   ├── EngineUnavailable     no answer within the deadline, or no serving engine
│   └── WeightUpdateFailed    an engine did not take a weight version
├── EnvError
│   ├── EnvInfraError         the world's fault: retried, never scored
│   ├── ActionError           the model's fault: becomes an observation, counted
│   └── EnvFatalError         the episode cannot go on
│       └── ImageError        an image cannot be read or shown: damaged, too large, missing, of an odd kind
├── ProcessDied               a process of the run ended without being asked to
└── TrainingError
    ├── ImageMismatch         a sample has another number of placeholders than its images have features
    ├── NoTrainableBatch      many completions in a row, yet no batch could be formed
    ├── TrainerSuperseded     a newer trainer has claimed the run
    ├── RankLost              another rank of the trainer ended, or did not answer in time: that one has the cause
    └── RepeatedDeaths        a process died several times without progress between the deaths
"""

__all__ = [
    "ActionError", "AgentLoadError", "AttentionUnsupported", "BufferError", "BufferFull", "BufferInUse",
    "BufferUnavailable", "ConfigError", "CorruptRecord", "DataError", "EngineError", "EngineRejected",
    "EngineUnavailable", "EnvError", "EnvFatalError", "EnvInfraError", "EnvironmentLoadError", "ImageError",
    "ImageMismatch", "ImageMissing", "JournalMismatch", "LeaseLost", "LedgerMismatch", "ModelError",
    "NoTrainableBatch", "ProcessDied", "PromptMismatch", "RankLost", "RecordsLost", "RepeatedDeaths", "StreamRLError",
    "TrainerSuperseded", "TrainingError", "UserError", "WeightUpdateFailed",
]  # fmt: skip


class StreamRLError(Exception):
    """Base of every error this package raises on purpose."""


class UserError(StreamRLError):
    """Something the user wrote is wrong; the one-line message names the setting, the value and the fix."""


class ConfigError(UserError):
    """A setting is unknown, has a wrong value, or contradicts another."""


class ModelError(UserError):
    """The model, its tokenizer or its chat template cannot be used."""


class AttentionUnsupported(ModelError):
    """The model's attention cannot be set, or does something that the attention of packed samples does not."""


class EnvironmentLoadError(UserError):
    """The environment module cannot be imported or has no `build_env`."""


class AgentLoadError(UserError):
    """The agent loop cannot be found or imported, or has no `run`."""


class DataError(UserError):
    """The dataset is missing or a row of it cannot be used, or what a run wrote down is damaged."""


class BufferError(StreamRLError):  # noqa: A001 - the room's name is the clearer one
    """Base of the trajectory buffer's errors."""


class BufferUnavailable(BufferError):
    """Redis could not be reached within the deadline."""


class BufferFull(BufferError):
    """No room within `buffer.room_timeout`: Redis refuses writes, or a limit of the settings is reached."""


class BufferInUse(BufferError):
    """Another embedded server has the data folder."""


class LeaseLost(BufferError):
    """The write carried another lease than the sample's newest one and was refused."""


class JournalMismatch(BufferError):
    """The commit names another record number than the journal expects next.

    `expected` is the number of records the journal holds; the producer re-sends from there.
    """

    def __init__(self, message: str, expected: int) -> None:
        super().__init__(message)
        self.expected = expected


class ImageMissing(BufferError):
    """The commit names images that are not in the buffer; `names` says which to put before it is sent again."""

    def __init__(self, message: str, names: tuple[str, ...]) -> None:
        super().__init__(message)
        self.names = names


class LedgerMismatch(BufferError):
    """The ledger does not hold the step asked for: Redis lost its tail, or the step was retired."""


class RecordsLost(BufferError):
    """A group's records are not there, or not all of them: retired, or lost by Redis with its newest writes.

    A trainer that takes the step again waits until they were played again.
    """


class CorruptRecord(BufferError):
    """A stored record does not decode."""


class EngineError(StreamRLError):
    """Base of the engine client's errors."""


class EngineRejected(EngineError):
    """The engine answered 4xx, or the request was refused before it was sent. Never retried."""


class PromptMismatch(EngineError):
    """The engine read another number of tokens than were sent: its log-probs are of another context."""


class EngineUnavailable(EngineError):
    """No engine answered within the deadline."""


class WeightUpdateFailed(EngineError):
    """An engine did not take a weight version; it is quarantined."""


class EnvError(StreamRLError):
    """Base of what an environment may raise on purpose."""


class EnvInfraError(EnvError):
    """Infrastructure failed (time-out, network, crash): retried under a budget, never scored.

    `cause` labels the metric of retries: "infra", "timeout", "reward", "process" for a dead one of environments, or
    "unknown" for an exception without a name.
    """

    def __init__(self, message: str, cause: str = "infra") -> None:
        super().__init__(message)
        self.cause = cause


class ActionError(EnvError):
    """The model's action cannot be understood: its message becomes the next observation, and is counted.

    `reward` is what this turn adds to the episode's reward.
    """

    def __init__(self, message: str, reward: float = 0.0) -> None:
        super().__init__(message)
        self.reward = reward


class EnvFatalError(EnvError):
    """The episode cannot go on; the sample fails and its sibling slot is refilled."""


class ImageError(EnvFatalError):
    """An image cannot be read or shown; the message says which, and why. Its sample fails, and no other."""


class ProcessDied(StreamRLError):
    """A process of the run ended without being asked to; it is brought back under a budget of deaths."""


class TrainingError(StreamRLError):
    """Base of the consumer's errors."""


class ImageMismatch(TrainingError):
    """A sample has another number of placeholder tokens than its images have features; the message names it."""


class NoTrainableBatch(TrainingError):
    """Many groups completed in a row without a batch that could be trained."""


class TrainerSuperseded(TrainingError):
    """Another trainer has claimed the run; this one must stop."""


class RankLost(TrainingError):
    """Another rank ended, or did not answer within `trainer.collective_timeout`: the cause is that rank's."""


class RepeatedDeaths(TrainingError):
    """A process died several times without progress between the deaths."""
