"""Every example passes --dry-run, with tiny models in the place of larger ones, and stands in the list of examples."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from command_line import StreamRL

from stream_rl.config import Config
from stream_rl.models import make_model

pytest.importorskip("mcp.client.stdio")  # it keeps the stderr that it is imported with, and a captured one is no file

FOLDER = Path(__file__).parents[2] / "examples"
EXAMPLES = sorted(FOLDER.glob("*.yaml"))
SEEING = ("models/tiny-vlm", "Qwen/Qwen3-VL-2B-Instruct")


@pytest.fixture(scope="session")
def stand_in(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """`stand_in(model.path)`: a tiny model that reads text, or images too, as that one does."""
    seeing = tmp_path_factory.mktemp("models") / "tiny-vlm"
    make_model("tiny-vlm", seeing)
    return lambda path: seeing if path in SEEING else tiny_model


@pytest.mark.usefixtures("in_the_checkout")
@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_a_dry_run_finds_nothing_wrong(
    stream_rl: StreamRL, path: Path, stand_in: Callable[[str], Path], tmp_path: Path
) -> None:
    config = Config.load(path)
    assert config.folder.name == path.stem
    model = stand_in(config.model.path)
    answer = stream_rl("train", path, f"run={tmp_path / 'run'}", f"model.path={model}", "--dry-run")
    assert (answer.code, answer.err) == (0, "")
    assert answer.out.startswith("ready: ")


@pytest.mark.usefixtures("in_the_checkout")
@pytest.mark.parametrize(
    "wrong",
    [
        (
            "frozen_lake",
            "environment.args.id=FrozenLak-v1",
            "environment.args.id='FrozenLak-v1' is no game of gymnasium",
        ),
        (
            "frozen_lake",
            "environment.args.options={colour: 1}",
            "environment.args.options={'colour': 1} of FrozenLake-v1",
        ),
        (
            "textarena",
            "environment.args.id=GuessTheNumbr-v0",
            "environment.args.id='GuessTheNumbr-v0' is no game of text",
        ),
        (
            "reasoning_gym",
            "environment.args.dataset=chain_sums",
            "environment.args.dataset='chain_sums' is no generator",
        ),
        ("tau2", "environment.args.domain=airline", "environment.args.domain='airline' must be one of telecom"),
        ("judge", "environment.args.judge.url=127.0.0.1", "environment.args.judge.url: '127.0.0.1' is no base address"),
        (
            "guess_number",
            "data.path={rows}",
            "a row's label is 9, and environment.path='guess_number' needs a whole number",
        ),
        ("smollm2_arithmetic", "data.path={rows} data.label_field=tag", "a row's label is 'x', and environment.path="),
        (
            "mixed_agents",
            "environment.reward_path=json.dumps",
            "environment.reward_path='json.dumps' must be `async def",
        ),
    ],
)
def test_a_dry_run_says_in_one_line_what_is_wrong(
    stream_rl: StreamRL, tiny_model: Path, tmp_path: Path, wrong: tuple[str, str, str]
) -> None:
    example, override, message = wrong
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"prompt": "guess", "label": 9, "tag": "x"}\n')
    overrides = override.replace("{rows}", str(rows)).split(" " if "{rows}" in override else "\0")
    where = (f"run={tmp_path / 'run'}", f"model.path={tiny_model}")
    answer = stream_rl("train", FOLDER / f"{example}.yaml", *where, *overrides, "--dry-run")
    assert answer.code == 2
    (line,) = answer.err.splitlines()
    assert line.startswith(f"stream-rl: error: {message}")


def test_the_list_names_every_example() -> None:
    listed = (FOLDER / "README.md").read_text()
    assert [path.name for path in EXAMPLES if f"`{path.name}`" not in listed] == []
