"""Everything that can be known to be wrong before a run starts: one line that names the setting and the fix.

Nothing is started and nothing is written. The checks go from cheap to slow, so that a typing error is answered at once.
"""

from __future__ import annotations

import asyncio

from stream_rl.config import Config
from stream_rl.preflight.environment import check_environment
from stream_rl.preflight.folder import check_folder
from stream_rl.preflight.machine import check_machine, check_ports
from stream_rl.preflight.model import check_model
from stream_rl.preflight.services import check_engines, check_redis
from stream_rl.producer.chat_probe import ProbeReport
from stream_rl.producer.loading import check_rollout

__all__ = ["preflight"]


def preflight(config: Config, *, resume: bool = False) -> ProbeReport:
    """Checks folder, ports, machine, environment, Redis, model and engines, and makes the first prompt.

    Must be called outside an event loop. Returns what the model's chat template can do.

    Raises:
        UserError: something the user wrote is wrong; nothing has been started.
    """
    check_folder(config, resume)
    check_ports(config)
    check_machine(config)
    check_environment(config)
    asyncio.run(check_redis(config, resume))
    check_model(config)
    asyncio.run(check_engines(config))
    return asyncio.run(check_rollout(config))
