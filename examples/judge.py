"""Starts the judge of examples/judge.yaml, trains, and ends the judge: python examples/judge.py [SETTING=VALUE ...]

The judge is a server of `model.path`, as the run's own engines are, but with its tokenizer, since it is asked in words.
On a machine of your own this would be one line, for another model:

    python -m sglang.launch_server --model-path Qwen/Qwen3-4B --port 30100
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from urllib.parse import urlsplit

from stream_rl.config import Config
from stream_rl.engine.server import EngineServer, launch_command, launch_environment

SETTINGS = Path(__file__).with_suffix(".yaml")


def judge_of(config: Config) -> EngineServer:
    """The server that `environment.args.judge.url` names; its log stands beside the run's folder."""
    port = urlsplit(config.environment.args["judge"]["url"]).port
    assert port is not None, "the judge's url has a port"
    command = [part for part in launch_command(config, 0, port) if part != "--skip-tokenizer-init"]
    return EngineServer(
        command,
        launch_environment(config),
        port=port,
        log_path=config.folder.with_suffix(".judge.log"),
        start_timeout=config.engine.start_timeout,
    )


def main(settings: list[str]) -> int:
    """The exit code of the run."""
    judge = judge_of(Config.load(SETTINGS, settings))
    judge.start()
    try:
        judge.wait_ready()
        command = [sys.executable, "-m", "stream_rl", "train", str(SETTINGS), *settings]
        return subprocess.run(command, check=False).returncode
    finally:
        judge.stop()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
