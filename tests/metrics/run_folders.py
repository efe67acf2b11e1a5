"""A run folder as a real run leaves it, from a seed: 60 steps, one of them replayed, two producers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from stream_rl.config import Config
from stream_rl.metrics.summary import RunFacts, summarise
from stream_rl.metrics.turn_log import JsonLines

GROUPS, SIBLINGS, STEPS = 4, 4, 60
REASONS = ("env_done", "max_turns", "max_turn_len", "parse_failures")


def config(folder: Path) -> Config:
    return Config.parse({
        "run": str(folder), "model": {"path": "models/tiny-text"}, "environment": {"path": "guess_number"},
        "rollout": {"groups_per_step": GROUPS, "group_size": SIBLINGS}, "trainer": {"steps": STEPS},
        "scheduling": {"run_ahead": 1, "max_staleness": 2},
    })  # fmt: skip


def write_run(folder: Path, seed: int = 0) -> Path:
    """Writes config.yaml, steps.jsonl, samples.jsonl, turns/ and summary.json into `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.yaml").write_text(config(folder).dump())
    random = np.random.default_rng(seed)
    with JsonLines(folder / "steps.jsonl") as steps:
        for step in range(1, STEPS + 1):
            steps.append(step_record(step, random, incarnation=int(step > 40)))
            if step == 42:
                steps.extend(step_record(again, random, incarnation=1, replayed=True) for again in (41, 42))
    turns = write_samples(folder, random)
    facts = RunFacts({"producer": 1, "engine": 1, "trainer": 1}, turns, {}, eval_reward=0.93, wall_seconds=140.0)
    summarise(folder, facts)
    return folder


def step_record(step: int, random: np.random.Generator, incarnation: int = 0, replayed: bool = False) -> dict[str, Any]:
    """One line of steps.jsonl with every field."""
    reward = float(np.clip(0.3 + 0.7 * step / STEPS + random.normal(0, 0.04), 0, 1))
    lag = float(random.uniform(0.5, 1.5)) if step > 1 else 0.0
    return {
        "step": step, "time": 1.75e9 + 2.0 * step, "version": f"{step}.{incarnation}" if incarnation else str(step),
        "incarnation": incarnation, "replayed": replayed,
        "groups": list(range((step - 1) * GROUPS, step * GROUPS)), "group_v0": [max(0, step - 2)] * GROUPS,
        "reward_mean": reward, "reward_std": 0.3 * (1.1 - reward), "response_length_mean": 14 - 6 * step / STEPS,
        "response_length_max": 22, "turns_mean": 3.6 - 1.2 * step / STEPS, "loss": float(random.normal(0, 0.01)),
        "grad_norm": float(random.uniform(0.2, 0.9)), "entropy": 2.0 * (1 - 0.8 * step / STEPS),
        "ratio_mean": float(random.normal(1, 0.01)), "clip_share": float(random.uniform(0, 0.1)),
        "by_lag": {
            str(old): {
                "tokens": 63, "ratio_mean": 1.0, "clip_share": 0.02 * old, "effective_sample_size": 0.99,
                "engine_trainer_kl": 1e-8 if old == 0 else 1e-3 * old,
            }
            for old in range(3 if step > 3 else 1)
        },
        "log_prob_difference": float(random.uniform(5e-8, 2e-7)),
        "log_prob_difference_all": float(random.uniform(1e-3, 5e-2)),
        "generated_tokens": 130, "trained_tokens": 126, "masked_tokens": 4, "token_lag_mean": lag,
        "masked_by_length": {"0-256": 4}, "oldest_group_length": 22, "sample_lags": [lag] * GROUPS * SIBLINGS,
        "wait_reasons": {"not_enough_complete": 0.1, "lag_rule": 0.05}, "correction_share": 0.0,
        "pack_seconds": 0.01, "forward_backward_seconds": 0.4, "optimizer_seconds": 0.1,
        "sample_lag_mean": lag, "lag_parts": {"generating": lag / 2, "siblings": lag / 4, "ready": lag / 4},
        "token_lag_max": 2 if step > 3 else 0, "trained_token_lag_max": 2 if step > 3 else 0,
        "group_lag_mean": lag, "group_lag_max": 2 if step > 3 else 0, "max_staleness": 2, "max_lag": 2,
        "versions_max": int(random.integers(1, 4)), "versions_mean": 1.2,
        "multi_version_samples": int(random.integers(0, 9)), "wait_seconds": float(random.uniform(0.1, 0.5)),
        "load_seconds": 0.01, "train_seconds": float(random.uniform(0.6, 0.8)), "publish_seconds": 0.2,
        "checkpoint_seconds": 0.5 if step % 20 == 0 else 0.0,
    }  # fmt: skip


def write_samples(folder: Path, random: np.random.Generator) -> int:
    """Writes samples.jsonl and the turn logs of two producers; returns the number of turns."""
    logs = [JsonLines(folder / "turns" / f"producer-{number}.jsonl") for number in range(2)]
    total = 0
    with JsonLines(folder / "samples.jsonl") as samples:
        for number in range(STEPS * GROUPS * SIBLINGS):
            group, index = divmod(number, SIBLINGS)
            length = int(random.integers(1, 5))
            versions = sorted(max(0, group // GROUPS - 1 + int(drift)) for drift in random.integers(0, 3, length))
            for turn, version in enumerate(versions):
                logs[number % 2].append(turn_record(group, index, turn, [str(version)], number))
            samples.append(
                sample_record(number, group, index, length, str(random.choice(REASONS, p=(0.7, 0.2, 0.05, 0.05))))
            )
            total += length
    for log in logs:
        log.close()
    return total


def turn_record(group: int, index: int, turn: int, versions: list[str], number: int = 0) -> dict[str, Any]:
    """One line of turns/PRODUCER.jsonl with every field."""
    return {
        "time": 1.75e9 + 0.1 * number + 0.03 * turn, "sample": f"{group}-{index}", "group": group, "index": index,
        "attempt": 0, "turn": turn, "complete": True, "position": turn + 1, "prompt": 6, "generated": 2,
        "observation": 3, "versions": versions,
        "generate_seconds": 0.02 + 0.001 * (number % 7), "queue_seconds": 0.001, "env_seconds": 0.0001,
        "encode_seconds": 0.0002, "commit_seconds": 0.0005, "env_retries": 0, "reward": 0.0, "finish_reason": "stop",
        "environment": "guess_number",
    }  # fmt: skip


def sample_record(number: int, group: int, index: int, turns: int, reason: str = "env_done") -> dict[str, Any]:
    """One line of samples.jsonl with every field."""
    return {
        "number": number, "time": 1.75e9 + 0.1 * number, "sample": f"{group}-{index}", "group": group, "index": index,
        "attempt": 0, "kind": "finished", "status": "completed" if reason == "env_done" else "truncated",
        "stop_reason": reason, "reward": 1.0 if reason == "env_done" else 0.1, "turns": turns,
        "response_length": 5 * turns, "generated": 2 * turns, "v0": max(0, group // GROUPS - 1),
    }  # fmt: skip
