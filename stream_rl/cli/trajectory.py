"""A trajectory as people read it: turn by turn, its text coloured by the loss mask. Pure functions to renderables."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich.console import Group, RenderableType
from rich.text import Text

from stream_rl.sample import Int32, Sample, Turn

if TYPE_CHECKING:
    from stream_rl.buffer import HeldGroup, HeldSample

__all__ = ["LEGEND", "Decode", "counted", "printable", "sample_view"]

Decode = Callable[[Int32], str]

PROMPT, GENERATED, OBSERVED = "cyan", "green", "yellow"
LEGEND = Text.assemble(
    ("prompt", PROMPT), "   ", ("generated: loss mask 1", GENERATED), "   ", ("observed: loss mask 0", OBSERVED)
)  # fmt: skip


def sample_view(group: HeldGroup, held: HeldSample, sample: Sample | None, decode: Decode) -> RenderableType:
    """One sample: its end, its prompt, and each record of its journal; `sample` is None for one that never began."""
    head = Text.assemble((f"sample {held.sample_id}", "bold"), f"  {' · '.join(_facts(held))}")
    if sample is None:
        return head
    head.append(f"\n  {' · '.join(_costs(sample))}", "dim")
    prompt = _passage(f"prompt, {len(sample.prompt_tokens)} tokens", sample.prompt_tokens, PROMPT, decode)
    return Group(head, prompt, *(part for turn in sample.turns for part in _turn(group, turn, decode)))


def _facts(held: HeldSample) -> Iterator[str]:
    yield held.state if held.stop_reason is None else f"{held.status}: {held.stop_reason}"
    if held.reward is not None:
        yield f"reward {held.reward:g}"
    yield f"turns {held.turns}, tokens {held.response_length}, of them generated {held.generated}"
    if held.producer:
        yield f"lease {held.leases}, {'now' if held.state == 'leased' else 'last'} of {held.producer}"


def _costs(sample: Sample) -> Iterator[str]:
    yield f"{sample.env_retries} environment retries, {sample.parse_failures} parse failures"
    yield f"{sample.active_seconds:.2f} s active"
    yield f"temperature {sample.temperature:g}, seed {sample.sampling_seed}"
    if sample.label is not None:
        yield f"label {printable(str(sample.label))}"


def _turn(group: HeldGroup, turn: Turn, decode: Decode) -> Iterator[RenderableType]:
    end = turn.finish_reason if turn.complete else "cut here, goes on in the next record"
    yield Text.assemble(
        (f"turn {turn.index}", "bold"), f"  {end} · {_versions(group, turn)} · {_seconds(turn)}", *_notes(turn)
    )
    yield _passage(f"generated, {len(turn.generated)} tokens", turn.generated, GENERATED, decode)
    if len(turn.observation):
        yield _passage(f"observed, {len(turn.observation)} tokens", turn.observation, OBSERVED, decode)


def _versions(group: HeldGroup, turn: Turn) -> str:
    """`version 3 [0:5], 4 [5:9]`; with its lag for a trained group."""
    parts = []
    for span in turn.spans:
        lag = "" if group.step is None else f" lag {group.step - 1 - span.version.step}"
        parts.append(f"{span.version} [{span.start}:{span.end}]{lag}")
    return f"version {', '.join(parts) or '–'}"


def _seconds(turn: Turn) -> str:
    return " ".join(f"{name} {seconds:.3f} s" for name, seconds in turn.timings.items()) or "no timings"


def _notes(turn: Turn) -> Iterator[str]:
    for name in ("reward", "env_retries", "parse_failures"):
        if value := getattr(turn, name):
            yield f" · {name} {value:g}"
    if turn.images:
        yield f" · images {', '.join(turn.images)}"


def _passage(label: str, tokens: Int32, style: str, decode: Decode) -> Text:
    return Text.assemble(
        (f"  {label}  ", "dim"), (printable(decode(tokens)).rstrip("\n").replace("\n", "\n    "), style)
    )


def printable(text: str) -> str:
    """The text with every control character but line feeds and tabs escaped: a model may write any of them."""
    return "".join(c if c.isprintable() or c in "\n\t" else c.encode("unicode_escape").decode() for c in text)


def counted(names: Sequence[str]) -> str:
    """`6 finished, 2 leased`."""
    counts: Mapping[str, Any] = {name: names.count(name) for name in dict.fromkeys(names)}
    return ", ".join(f"{count} {name}" for name, count in counts.items())
