"""What SGLang on CPU answers with a picture in every turn, beside the same turns in words: requests a second.

Untrained tiny models play the demos' episodes through the real turn loop, as an evaluation does; nothing is committed
or trained. Each has a server of its own, and they take turns, round by round. A request with a picture costs the engine
its decoding, the vision tower and the HTTP of its bytes; an episode's earlier pictures come from the engine's cache.

    python benchmarks/image_requests.py            64 episodes at once, a few minutes
    python benchmarks/image_requests.py --quick    one short round, without the third model
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from measures import command_line
from rich.console import Console
from rich.table import Table

from stream_rl.config import Config
from stream_rl.engine.fleet import Fleet
from stream_rl.engine.publish import WeightPublisher
from stream_rl.engine.server import EngineServer
from stream_rl.models import make_model
from stream_rl.producer.evaluation import evaluate_rollout
from stream_rl.producer.loading import load_rollout, load_vocab_size
from stream_rl.sample import WeightVersion

EXAMPLES = Path(__file__).parents[1] / "examples"
CONTENDERS = {
    "words": ("guess_number", "tiny-text"),
    "pictures": ("grid_walk_images", "tiny-vlm"),
    "pictures, Qwen2.5-VL": ("grid_walk_images", "tiny-vlm-qwen2.5"),
}
FRAME = {"tiny-vlm-qwen2.5": ["environment.args.frame=28"]}
VERSION = WeightVersion(0)


class Contender:
    """A model behind its server; `requests_per_second` plays episodes on it."""

    def __init__(self, config: Config, server: EngineServer) -> None:
        self._config, self._server = config, server
        self._rollout = load_rollout(config, held_out=True)

    async def begin(self) -> None:
        """Waits until the server answers, and says which version its weights are."""
        await asyncio.to_thread(self._server.wait_ready)
        publisher = WeightPublisher()
        (update,) = await publisher.publish([("engine-0", self._server.url)], VERSION, Path(self._config.model.path))
        await publisher.close()
        assert update.ok, update.error

    async def requests_per_second(self) -> float:
        """Plays all episodes once; each turn is a request."""
        fleet = Fleet(vocab_size=load_vocab_size(self._config.model), timeout=self._config.evaluation.deadline)
        await fleet.refresh([("engine-0", self._server.url)])
        began = time.monotonic()
        ended = await evaluate_rollout(self._rollout, fleet, VERSION)
        seconds = time.monotonic() - began
        await fleet.close()
        assert len(ended) == self._config.evaluation.episodes
        return sum(len(sample.turns) for sample in ended) / seconds


@contextmanager
def contender(name: str, folder: Path, args: argparse.Namespace) -> Iterator[Contender]:
    """Makes its model and starts its server, which need not answer yet: all start at once."""
    example, model = CONTENDERS[name]
    make_model(model, folder / model)
    config = Config.load(EXAMPLES / f"{example}.yaml", [
        f"run={folder / model}-run", f"model.path={folder / model}", f"evaluation.episodes={args.episodes}",
        f"producer.concurrency={args.live}", f"seed={args.seed}", *FRAME.get(model, []),
    ])  # fmt: skip
    config.folder.mkdir(exist_ok=True)
    server = EngineServer.from_config(config, 0, log_path=config.folder / "engine.log")
    server.start()
    try:
        yield Contender(config, server)
    finally:
        server.stop()


async def measure(contenders: dict[str, Contender], rounds: int) -> dict[str, list[float]]:
    """Requests a second of each round, after one that is not counted."""
    for one in contenders.values():
        await one.begin()
    found: dict[str, list[float]] = {name: [] for name in contenders}
    for number in range(rounds + 1):
        for name, one in contenders.items():
            rate = await one.requests_per_second()
            if number:
                found[name].append(rate)
    return found


def table(found: dict[str, list[float]]) -> Table:
    """Medians, and each as a share of the first."""
    shown = Table("requests with", "requests/s", "rounds", "of the first")
    base = next(iter(found.values()))
    for name, rates in found.items():
        share = statistics.median(rate / first for rate, first in zip(rates, base, strict=True))
        spread = f"{min(rates):,.0f} to {max(rates):,.0f}"
        shown.add_row(name, f"{statistics.median(rates):,.0f}", spread, f"{share:.2f}")
    return shown


def main() -> None:
    """Reads the command line, measures, prints."""
    parser = command_line.parser(__doc__, quick="one round of few episodes, words and pictures")
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--episodes", type=int, help="episodes of a round")
    parser.add_argument("--live", type=int, default=64, help="episodes at once")
    parser.add_argument("--contenders", nargs="+", choices=list(CONTENDERS), metavar="NAME")
    args = command_line.settled(
        parser.parse_args(),
        usual={"rounds": 3, "episodes": 512, "contenders": list(CONTENDERS)},
        quick={"rounds": 1, "episodes": 64, "contenders": ["words", "pictures"]},
    )
    with tempfile.TemporaryDirectory() as folder, ExitStack() as servers:
        contenders = {name: servers.enter_context(contender(name, Path(folder), args)) for name in args.contenders}
        found = asyncio.run(measure(contenders, args.rounds))
    Console(width=100).print(table(found))
    command_line.write(args.json, found)


if __name__ == "__main__":
    main()
