"""The environment: it must load, and take what `environment.args` gives it."""

from __future__ import annotations

from stream_rl.config import Config
from stream_rl.envs.loading import load_environment
from stream_rl.errors import ConfigError
from stream_rl.slime.imports import allow_slime_imports
from stream_rl.suggestion import did_you_mean
from stream_rl.tools.agent import SETTING

__all__ = ["check_environment"]

TOOL_AGENT = SETTING.rpartition(".")[2]
"""The one argument that is the agent loop's: rows that name `tool_agent` may stand beside the environment's own."""


def check_environment(config: Config) -> None:
    """`environment.args` may only have names that `build_env` takes, when it takes any by name.

    Raises:
        EnvironmentLoadError: there is no such environment.
        ConfigError: a name is none of its own.
    """
    if config.environment.slime_imports:
        allow_slime_imports()
    path, takes = config.environment.path, load_environment(config.environment.path).takes
    for name in config.environment.args if takes else ():
        if name not in takes and name != TOOL_AGENT:
            hint = did_you_mean(name, takes, f"it takes {', '.join(sorted(takes))}")
            raise ConfigError(f"environment.args.{name} is nothing that environment.path={path!r} takes: {hint}")
