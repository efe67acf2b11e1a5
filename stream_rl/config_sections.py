"""The sections of the settings, for config.py, which gives them out; those of trainer, engines and images have files of
their own. Every field says what it does, its unit, and when to change it. Imports no torch.
"""

from __future__ import annotations

from typing import Any, Literal, Self, get_args

from pydantic import BaseModel, ConfigDict, Field, ValidationError, ValidationInfo, field_validator, model_validator

from stream_rl.errors import ConfigError

__all__ = [
    "LARGEST",
    "BufferConfig",
    "DataConfig",
    "EnvironmentConfig",
    "EvaluationConfig",
    "MetricsConfig",
    "ModelConfig",
    "ProducerConfig",
    "RolloutConfig",
    "SchedulingConfig",
    "Settings",
    "SupervisionConfig",
]

LARGEST = 2**31 - 1
"""Of every integer among the settings."""


class Settings(BaseModel):
    """Base of every section: frozen, closed to names that it does not have, and every number finite."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, allow_inf_nan=False, use_attribute_docstrings=True, protected_namespaces=()
    )

    @classmethod
    def within(cls, where: str, tree: Any) -> Self:
        """Settings in the free part of others, under the key `where`. Raises ConfigError, which names the key."""
        try:
            return cls.model_validate(tree)
        except ValidationError as error:
            first = error.errors()[0]
            key = ".".join([where, *(str(part) for part in first["loc"])])
            raise ConfigError(f"{key}: {first['msg'].removeprefix('Value error, ')}") from error

    @field_validator("*", mode="before")
    @classmethod
    def _is_a_number(cls, value: Any, info: ValidationInfo) -> Any:
        """Pydantic would take `true` for 1, and an integer that no counter of Redis or numpy holds."""
        assert info.field_name is not None
        numbers = {int, float} & {annotation := cls.model_fields[info.field_name].annotation, *get_args(annotation)}
        if numbers and isinstance(value, bool):
            raise ValueError(f"must be a number, not {str(value).lower()}")
        if int in numbers and isinstance(value, int) and abs(value) > LARGEST:
            raise ValueError(f"{value} is beyond {LARGEST}")
        return value


class ModelConfig(Settings):
    """Which model is trained."""

    path: str
    """A Hugging Face folder or name; `stream-rl make-model` writes small ones for machines without a hub."""
    dtype: Literal["float32", "bfloat16", "float16"] = "float32"
    """What the engine serves and the trainer computes in. float32 on CPU; bfloat16 on GPUs."""
    chat_template: str | None = None
    """File with a Jinja chat template that replaces the tokenizer's own; needed when the tokenizer has none."""
    template_args: dict[str, Any] = Field(default_factory=dict)
    """Extra variables of the chat template, for instance `enable_thinking: false`."""


class EnvironmentConfig(Settings):
    """Which world the agent acts in."""

    path: str | None = None
    """Module or .py file with `build_env(sample=None, args=None, **_)`, or the name of one that ships. Empty: none."""
    args: dict[str, Any] = Field(default_factory=dict)
    """Passed to `build_env` as attributes of `args`; `args.max_turns` is `rollout.max_turns`."""
    reward_path: str | None = None
    """`module:function`, `async (args, sample) -> float`, that scores a finished sample instead of `info["reward"]`."""
    reward_key: str | None = None
    """Where `reward_path` answers with a mapping, the key of the reward in it."""
    slime_imports: bool = False
    """Let users' modules import `slime.utils.types` and the like without slime; docs/slime.md lists what there is."""
    step_timeout: float = Field(60.0, gt=0)
    """Seconds that one `reset` or `step` may take before it counts as an infrastructure error."""
    max_env_retries_per_turn: int = Field(3, ge=0)
    """Infrastructure errors forgiven in one turn; more of them fail the sample, which is then refilled."""
    max_env_retries_per_sample: int = Field(10, ge=0)
    """Infrastructure errors forgiven in one sample."""
    max_parse_failures: int = Field(3, ge=0)
    """Actions that the environment cannot parse, forgiven in one episode; one more stops it with `parse_failures`."""
    executor: Literal["threads", "processes"] = "threads"
    """Where environments run: beside the turn loops, or in processes, for those that compute or hold Python's lock."""
    executor_threads: int = Field(32, gt=0)
    """Calls of synchronous environments under way at once, each in a thread; fewer for heavy ones. A call that hangs is
    one of them until its time-out, so more than may hang at once keep the others from waiting for it."""
    executor_processes: int = Field(2, gt=0)
    """With `executor: processes`, how many a producer has; each runs its calls in threads."""


class DataConfig(Settings):
    """Where prompts come from. Without `path` the environment's own `prompt(seed, index, args)` gives them."""

    path: str | None = None
    """Rows of prompts: a .jsonl or .parquet file, a folder of Parquet files or of `save_to_disk`, or a hub dataset."""
    split: str = "train"
    """Of a dataset with splits, the one to take."""
    subset: str | None = None
    """Of a hub dataset with several configurations, the one to take."""
    prompt_field: str = "prompt"
    """The row's field with the prompt: text or a list of chat messages."""
    label_field: str = "label"
    """The row's field handed to the environment as `sample.label`; may be absent."""
    image_field: str | None = None
    """The row's field with a list of images for the `<image>` marks in its prompt; slime: `multimodal_keys`."""
    shuffle: bool = True
    """Shuffle every epoch, seeded by `seed`."""
    system_prompt: str | None = None
    """A system message put before every prompt that has none."""

    @field_validator("image_field", mode="before")
    @classmethod
    def _of_multimodal_keys(cls, value: Any) -> Any:
        """slime's `multimodal_keys` is a mapping."""
        if not isinstance(value, dict):
            return value
        if value.keys() != {"image"}:
            raise ValueError(f"must be {{image: FIELD}}, not {value}: rows may have images alone")
        return value["image"]


class RolloutConfig(Settings):
    """How much of what is generated, and when an episode must end."""

    groups_per_step: int = Field(32, gt=0)
    """Groups that one training step takes (B)."""
    group_size: int = Field(8, gt=1)
    """Siblings that share one prompt and one GRPO baseline."""
    agent: str | None = None
    """Loop of rows without `agent_name`. Empty: `multi_turn_env`, or `single_turn_agent` without an environment."""
    agents: dict[str, str] = Field(default_factory=dict)
    """Names that `agent_name` may have besides those that ship, each with its `module:Class` or `module:function`."""
    max_turns: int = Field(4, gt=0)
    """Interactions per episode; then it stops with `max_turns`."""
    max_turn_len: int = Field(256, gt=0)
    """Tokens the model may write in one turn, end token included. A turn cut here ends the episode, unheard."""
    commit_every_tokens: int = Field(2048, gt=0)
    """Tokens of one turn after which they are committed while it goes on: a crash loses no more."""
    max_response_len: int = Field(4096, gt=0)
    """Tokens of the whole response, observations included, prompt excluded."""
    max_context_len: int = Field(4096, gt=0)
    """Tokens of prompt and response together; at most the engine's context length."""
    temperature: float = Field(1.0, gt=0)
    """Sampling temperature of training rollouts; recorded, and divided by in the trainer."""
    deadline: float = Field(3600.0, gt=0)
    """Active seconds an episode may take; waiting in the buffer does not count."""


class ProducerConfig(Settings):
    """The processes that run turn loops."""

    count: int = Field(1, gt=0)
    """Producer processes."""
    concurrency: int = Field(256, gt=0)
    """Samples that one producer holds at once."""
    lease_seconds: float = Field(15.0, gt=0)
    """A producer silent for so long loses its samples to the others, with every committed turn."""
    max_refills_per_group: int = Field(8, ge=0)
    """Failed siblings replaced in one group before the whole group is dead-lettered."""
    drain_seconds: float = Field(10.0, gt=0)
    """Time to commit open turns after SIGTERM or Ctrl-C."""


class BufferConfig(Settings):
    """The Redis that holds every trajectory."""

    url: str | None = None
    """redis://, rediss:// or unix:// address. Empty: an embedded Valkey with its data in the run folder."""
    password_env: str = "STREAM_RL_REDIS_PASSWORD"
    """Environment variable that holds the password; secrets never stand in a settings file."""
    fsync: Literal["always", "everysec", "no"] = "everysec"
    """The embedded server's appendfsync: what a crash of the server itself may lose."""
    timeout: float = Field(30.0, gt=0)
    """Seconds a call waits for Redis, reconnections included, before it fails by name."""
    room_timeout: float = Field(3600.0, gt=0)
    """Seconds a full buffer is waited for before `BufferFull`: Redis's memory, or `max_journal_mib`, is used up."""
    max_journal_mib: int | None = Field(None, gt=0)
    """MiB of journals above which no group is admitted; what two checkpoints hold must fit. Empty: no limit."""
    max_ready_groups: int | None = Field(None, gt=0)
    """Complete groups waiting for the trainer at which no group is admitted. Empty: only `run_ahead` limits them."""
    max_leased_samples: int | None = Field(None, gt=0)
    """Samples that all producers together may hold at once. Empty: only `producer.concurrency` limits them."""
    compression: Literal["none", "zstd"] = "none"
    """How records are stored; zstd takes about half the bytes for about 1 ms of a producer's time per 32k tokens."""


class SchedulingConfig(Settings):
    """When a group starts and when it is trained. scheduling.py proves the bound that the first three give."""

    run_ahead: float = Field(3, ge=0)
    """Steps' worth of groups that start ahead of their step (K); may be 0.5. Unset: min(3, max_staleness, max_lag)."""
    max_staleness: int = Field(8, ge=0)
    """Tokens generated more than this many versions before the step that trains them carry no loss (eta)."""
    max_lag: int = Field(12, ge=0)
    """No group trains when its first token is older than this many versions (W). Unset: max_staleness if set."""
    filter_zero_variance: bool = False
    """Leave out groups whose rewards are all equal, when they complete."""
    max_untrainable_completions: int = Field(4096, gt=0)
    """Groups filtered or dead-lettered in a row before the run stops with `NoTrainableBatch`."""

    @model_validator(mode="before")
    @classmethod
    def _fill(cls, tree: Any) -> Any:
        if isinstance(tree, dict) and isinstance(staleness := tree.get("max_staleness", 8), int):
            lag = tree.get("max_lag", staleness if "max_staleness" in tree else 12)
            if isinstance(lag, int):
                return {"max_lag": lag, "run_ahead": min(3, staleness, lag), **tree}
        return tree

    @model_validator(mode="after")
    def _agree(self) -> SchedulingConfig:
        if self.max_staleness > self.max_lag:
            raise ValueError(f"max_staleness={self.max_staleness} is more than max_lag={self.max_lag}: lower it")
        if self.run_ahead > self.max_lag:
            raise ValueError(f"run_ahead={self.run_ahead:g} is more than max_lag={self.max_lag}: lower it")
        return self


class EvaluationConfig(Settings):
    """Episodes on held-out prompts: after the last step, and every so many before it."""

    episodes: int = Field(64, ge=0)
    """Episodes of one evaluation; 0 turns evaluation off."""
    every: int | None = Field(None, gt=0)
    """Steps between evaluations of one version on one engine, while the run goes on. Empty: only after the last."""
    samples: int = Field(1, gt=0)
    """Episodes of each prompt; above 1 the share of prompts solved in so many tries is told as well (pass@k)."""
    pass_reward: float = 1.0
    """Reward from which on an episode has solved its prompt."""
    temperature: float = Field(1.0, ge=0)
    """Sampling temperature; 0 is greedy."""
    agent: str | None = None
    """Loop of rows without `agent_name`. Empty: `rollout.agent`."""
    deadline: float = Field(600.0, gt=0)
    """Seconds after which the evaluation ends with the episodes it has."""

    @model_validator(mode="after")
    def _agree(self) -> Self:
        if self.episodes % self.samples:
            raise ValueError(f"episodes={self.episodes} cannot be divided into samples={self.samples} of each prompt")
        return self


class MetricsConfig(Settings):
    """What the processes show."""

    host: str = "127.0.0.1"
    """Address that the /metrics servers listen on."""
    port: int | None = Field(None, gt=0, lt=65536)
    """The supervisor's /metrics port; empty: a free one. The other processes always take free ones."""
    turn_log: bool = True
    """Write one JSON line per committed turn into RUN/turns/."""
    turn_log_mib: int = Field(256, gt=0)
    """MiB at which a producer's turn log is put aside under a number, and a new one begun."""
    turn_logs_kept: int | None = Field(None, gt=0)
    """Turn logs put aside that each producer keeps; empty: all. `lost_turns` is counted over those that are there."""
    json_logs: bool = False
    """Write RUN/logs as JSON lines, each with run, group, sample, turn and lease where they are known."""
    otlp_endpoint: str | None = None
    """URL that takes traces by OTLP over HTTP, as OpenTelemetry collectors and MLflow do. Empty: no traces."""
    trace_share: float = Field(0.01, ge=0, le=1)
    """Share of the trajectories that are traced, drawn by their names: a resumed one is in the share as before."""
    tensorboard: bool = False
    """Write the steps' figures as TensorBoard event files into RUN/tensorboard/."""
    wandb_project: str | None = None
    """Weights & Biases project that gets the steps' figures too; needs `wandb` installed, and its own login."""


class SupervisionConfig(Settings):
    """What happens when a process dies."""

    max_deaths_without_progress: int = Field(3, gt=0)
    """Deaths of one process kind without a training step between them that stop the run."""
    heartbeat: float = Field(0.5, gt=0)
    """Seconds between two looks at the run."""
    ray_address: str = "local"
    """Ray cluster that the processes run on; `local` starts one on this machine for the run."""
