"""The trainer's section of the settings; docs/algorithms.md explains the algorithms that it names. Imports no torch."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from stream_rl.config_sections import Settings

__all__ = ["AdvantageKind", "KlEstimator", "TrainerConfig"]

Decay = Annotated[float, Field(ge=0, lt=1)]
AdvantageKind = Literal["grpo", "dr_grpo", "rloo"]
KlEstimator = Literal["k1", "k2", "k3"]

IMPORTANCE_BOUNDS = {"truncated": (None, 2.0), "icepop": (0.5, 5.0), "sequence_mask": (None, 2.0)}
"""`importance_floor` and `importance_cap` as the papers of each correction have them."""


class TrainerConfig(Settings):
    """The FSDP trainer and its algorithm."""

    steps: int = Field(100, gt=0)
    """Training steps of the run."""
    world_size: int = Field(1, gt=0)
    """Trainer ranks (FSDP shards)."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where the trainer computes."""
    threads: int = Field(1, gt=0)
    """CPU threads of one rank; 1 is best for tiny models, all cores from about 100M parameters on."""
    learning_rate: float = Field(1e-6, gt=0)
    """AdamW's."""
    warmup_steps: int = Field(0, ge=0)
    """Steps over which the learning rate rises linearly from zero."""
    learning_rate_schedule: Literal["constant", "linear", "cosine"] = "constant"
    """What the learning rate does after its warm-up, up to the run's last step."""
    final_learning_rate_share: float = Field(0.0, ge=0, le=1)
    """What `linear` and `cosine` leave of the learning rate after the last step."""
    betas: tuple[Decay, Decay] = (0.9, 0.95)
    """AdamW's."""
    weight_decay: float = Field(0.0, ge=0)
    """AdamW's."""
    max_grad_norm: float = Field(1.0, gt=0)
    """Gradients are clipped to this global norm."""
    mini_batches: int = Field(1, gt=0)
    """Optimizer updates per step; the step's groups are divided among them."""
    max_tokens_per_micro_batch: int = Field(16384, gt=0)
    """Tokens that one forward pass holds, padding included: memory against speed."""
    packing: bool = True
    """Samples share a row without padding, each attending to itself; false, or a model that cannot: a row each."""
    replicas: int = Field(1, gt=0)
    """Copies of the sharded model; `world_size` / `replicas` neighbouring ranks share one. One per node on many."""
    activation_checkpointing: bool = False
    """Keep only what goes into each transformer block, and compute the rest anew in the backward pass."""
    frozen: list[str] = Field(default_factory=list)
    """Weights that are not trained: patterns of their names, as `model.visual.*`."""
    advantage: AdvantageKind = "grpo"
    """How a sample is compared with its siblings: in standard deviations, as it is, or with the others' mean."""
    turn_discount: float | None = Field(None, ge=0, le=1)
    """A turn is credited with the rewards from it on, later ones discounted by this; empty: with the episode's."""
    policy_loss: Literal["ppo_clip", "gspo"] = "ppo_clip"
    """Whether the clipped ratio is a token's own or its whole sequence's."""
    clip_against: Literal["rollout", "start"] = "rollout"
    """The ratio's other policy: the one that wrote the token, or the step's start (decoupled; needs `correction`)."""
    clip_low: float = Field(0.2, gt=0, lt=1)
    """The ratio's lower bound is 1 - clip_low."""
    clip_high: float = Field(0.2, gt=0)
    """The ratio's upper bound is 1 + clip_high."""
    correction: Literal["none", "truncated", "icepop", "sequence_mask"] = "none"
    """Importance sampling from the policy that wrote a token to the step's start, which `importance_*` bound."""
    importance_floor: float | None = Field(None, gt=0, lt=1)
    """Smallest importance weight; below it a token, or its sequence, has no loss. Unset: the correction's."""
    importance_cap: float | None = Field(None, gt=0)
    """Largest importance weight; `truncated` holds it there, the others drop what is above. Unset: the correction's."""
    aggregation: Literal["token_mean", "sequence_mean", "constant"] = "token_mean"
    """A mini-batch's loss: all tokens' mean, the mean of sequences' means, or that of sums / `aggregation_length`."""
    aggregation_length: int | None = Field(None, gt=0)
    """Tokens by which `constant` divides every sample's sum; usually rollout.max_response_len."""
    kl_coefficient: float = Field(0.0, ge=0)
    """Weight of the KL divergence from a reference model; 0 loads none."""
    kl_in: Literal["loss", "weighted_loss", "reward"] = "loss"
    """Where it goes: into the loss, as it is or weighted by the ratio to the rollout policy, or off the rewards."""
    kl_estimator: KlEstimator = "k3"
    """How a token's divergence is estimated: log-ratio, half its square, or ratio - 1 - log-ratio."""
    reference_path: str | None = None
    """The reference model; empty: `model.path`, the model that the run began with."""
    entropy_coefficient: float = Field(0.0, ge=0)
    """Entropy bonus per token."""
    checkpoint_every: int = Field(20, gt=0)
    """Steps between checkpoints."""
    checkpoints_kept: int = Field(2, gt=0)
    """Newest checkpoints kept; the ledger and its samples are kept as far back as the oldest of them."""
    collective_timeout: float = Field(1800.0, gt=0, le=1e6)
    """Seconds that ranks wait for each other: longer than the updates of all engines, and than writing a checkpoint."""

    @model_validator(mode="before")
    @classmethod
    def _fill(cls, tree: Any) -> Any:
        if isinstance(tree, dict) and isinstance(correction := tree.get("correction"), str):
            floor, cap = IMPORTANCE_BOUNDS.get(correction, (None, None))
            return {"importance_floor": floor, "importance_cap": cap, **tree}
        return tree

    @model_validator(mode="after")
    def _agree(self) -> TrainerConfig:
        for message in (*self._optimizer_faults(), *self._off_policy_faults(), *self._objective_faults()):
            raise ValueError(message)
        return self

    def _optimizer_faults(self) -> Iterator[str]:
        if self.world_size % self.replicas:
            yield f"world_size={self.world_size} ranks cannot be divided into replicas={self.replicas}"
        falls = self.learning_rate_schedule != "constant"
        if self.final_learning_rate_share and not falls:
            yield "final_learning_rate_share needs learning_rate_schedule=linear or cosine"
        if falls and self.warmup_steps >= self.steps:
            yield f"warmup_steps={self.warmup_steps} leaves none of steps={self.steps} for the learning rate to fall in"
        if self.warmup_steps > self.steps:
            yield f"warmup_steps={self.warmup_steps} is more than steps={self.steps}: learning_rate is never reached"

    def _off_policy_faults(self) -> Iterator[str]:
        correction, floor, cap = self.correction, self.importance_floor, self.importance_cap
        if correction == "none" and (floor, cap) != (None, None):
            yield "importance_floor and importance_cap need a correction: truncated, icepop or sequence_mask"
        if correction == "none" and self.clip_against == "start":
            yield "clip_against=start takes older versions' tokens for the newest one's: add correction=truncated"
        if correction == "truncated" and self.clip_against == "rollout":
            yield "correction=truncated counts the ratio to the rollout policy twice: set clip_against=start"
        if correction == "truncated" and floor is not None:
            yield "correction=truncated has no importance_floor: remove it, or take icepop"
        if floor is not None and cap is not None and floor >= cap:
            yield f"importance_floor={floor:g} is not below importance_cap={cap:g}"

    def _objective_faults(self) -> Iterator[str]:
        if self.policy_loss == "gspo" and self.aggregation != "sequence_mean":
            yield "policy_loss=gspo is the mean over sequences: set aggregation=sequence_mean"
        if (self.aggregation == "constant") != (self.aggregation_length is not None):
            yield "aggregation=constant and aggregation_length need each other"
        if not self.kl_coefficient and (self.kl_in != "loss" or self.reference_path is not None):
            yield f"kl_in={self.kl_in} and reference_path need a kl_coefficient above 0"
        if self.kl_coefficient and (self.kl_in, self.kl_estimator) == ("loss", "k1"):
            yield "kl_estimator=k1 with kl_in=loss has a mean gradient of zero: set kl_in=weighted_loss, or k2 or k3"
        if self.kl_coefficient and (self.kl_in, self.kl_estimator) == ("weighted_loss", "k2"):
            yield "kl_estimator=k2 with kl_in=weighted_loss has no divergence's gradient: set kl_in=loss, or k1 or k3"
