"""slime's `args` for users' functions: this run's settings by slime's names."""

from __future__ import annotations

from typing import Any

from stream_rl.config import Config
from stream_rl.config_aliases import ALIASES

__all__ = ["slime_args"]


def slime_args(config: Config) -> dict[str, Any]:
    """Every setting that slime has a name for, by that name, and what slime's rollout functions ask for besides."""
    return {
        **{name: _setting(config, own) for name, own in ALIASES.items()},
        "apply_chat_template": True,
        "apply_chat_template_kwargs": config.model.template_args,
        "partial_rollout": False,
        "sglang_router_ip": "engine",
        "sglang_router_port": 0,
        "sglang_speculative_algorithm": None,
    }


def _setting(config: Config, path: str) -> Any:
    value: Any = config
    for name in path.split("."):
        value = getattr(value, name)
    return value
