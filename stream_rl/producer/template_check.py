"""Whether a chat template can do what a run asks of it: its turns, its tools, its system message, its environment."""

from __future__ import annotations

import numpy as np

from stream_rl.config import Config, ModelConfig
from stream_rl.errors import EnvironmentLoadError, ModelError
from stream_rl.multimodal import Encoded
from stream_rl.producer.chat_probe import ProbeReport, kind_of
from stream_rl.producer.env_session import Shown

__all__ = ["check_role", "check_template", "check_tools"]


def check_tools(config: ModelConfig) -> None:
    """`template_args.tools` must be what templates take. Raises ModelError."""
    tools = config.template_args.get("tools") or ()
    try:
        named = all(isinstance(tool["function"]["name"], str) for tool in tools)
    except (TypeError, KeyError):
        named = False
    if not named:
        raise ModelError(
            "model.template_args.tools must be a list of tool schemas, {type: function, function: {name: ...}}"
        )


def check_template(config: Config, report: ProbeReport) -> None:
    """What the settings ask for, the template must be able to do. Raises ModelError."""
    another = f"({report.model}): set model.chat_template to one that can"
    if config.rollout.max_turns > 1 and (reason := report.refused.get("user")):
        raise ModelError(f"{reason} {another}, or rollout.max_turns to 1")
    if config.model.template_args.get("tools") and not report.tools_shown:
        raise ModelError(f"the chat template does not show model.template_args.tools to the model {another}")
    if config.data.system_prompt and report.system:
        raise ModelError(f"data.system_prompt cannot be used, {report.system} {another}, or leave it empty")


def check_role(config: Config, report: ProbeReport, first_observation: Shown) -> None:
    """An environment that begins with messages of role tool goes on with them. Raises EnvironmentLoadError."""
    if config.rollout.max_turns == 1 or isinstance(first_observation, np.ndarray | Encoded) or not first_observation:
        return
    if reason := report.refused.get(kind_of(first_observation)):
        raise EnvironmentLoadError(
            f"environment.path={config.environment.path!r} shows observations of role "
            f"{first_observation[0]['role']!r}, and {reason} ({report.model}): give them role user"
        )
