"""`stream-rl make-model`: small models for machines without a hub."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from stream_rl import models

__all__ = ["EXAMPLES", "make_model"]

EXAMPLES = """Examples:

  stream-rl make-model tiny-text models/tiny-text

  stream-rl make-model tiny-vlm models/tiny-vlm

  stream-rl make-model smollm2 models/smollm2
"""


def make_model(
    name: Annotated[
        str,
        typer.Argument(
            metavar="NAME",
            help="tiny-text, a random Qwen3 that knows 32 words; tiny-vlm, a random Qwen3-VL that sees, or "
            "tiny-vlm-qwen2.5, the same as a Qwen2.5-VL; or smollm2, which is SmolLM2-135M-Instruct.",
        ),
    ],
    out: Annotated[Path, typer.Argument(metavar="OUT", help="Folder to write; it must be absent or empty.")],
) -> None:
    """Write a model and its tokenizer as a Hugging Face folder, for `model.path`."""
    models.make_model(name, out)
    typer.echo(f"wrote {out}: train with model.path={out}")
