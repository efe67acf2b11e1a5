"""Attention over packed sequences: each token sees its own sequence and nothing else, without a mask over all of them.

    q, k, v of one row of t tokens ─► runs of sequences of similar length, as rows ─► causal attention ─► one row again

Everything but attention (projections, norms, feed-forward) runs on the row as it is, where nothing is padding. Rows of
a run are padded on the right, where causal attention never looks. On CUDA, with half precision and the flash-attn
package, its variable-length kernel takes the row as it is instead.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import AttentionInterface, PreTrainedModel
from transformers.utils.import_utils import is_flash_attn_2_available

from stream_rl.errors import AttentionUnsupported

__all__ = [
    "PACKED",
    "Sequences",
    "attention_of",
    "packed_kernel",
    "sequence_arguments",
    "set_attention",
    "why_not_packed",
]

PACKED = "stream_rl_packed"
FLASH = "flash_attention_2"

_SHORT = 64
_SIMILAR = 0.75
_CHANGES_SCORES = ("softcap", "s_aux", "position_bias", "cache")


@dataclass(frozen=True, slots=True)
class Run:
    """Neighbouring sequences that attend in one call: tokens start..end of the row, as `rows` rows of `width`.

    places  int64 (end - start,), where the tokens are among the rows' places; None when all rows are full
    """

    start: int
    end: int
    rows: int
    width: int
    places: Tensor | None


class Sequences:
    """How a packed row divides into runs; the same for all layers of a forward pass.

    No dataclass: FSDP would copy it for every block, in search of numbers to make narrower.
    """

    def __init__(self, runs: tuple[Run, ...]) -> None:
        self.runs = runs
        self._bands: dict[tuple[int, int], Tensor] = {}

    @classmethod
    def of(cls, lengths: Sequence[int], device: torch.device) -> Sequences:
        """Sequences of these lengths, one after the other; fewest runs when they fall or rise."""
        runs, start, first = [], 0, 0
        for number in range(1, len(lengths) + 1):
            if number == len(lengths) or not _similar(lengths[first], lengths[number]):
                runs.append(_run(np.asarray(lengths[first:number], np.int64), start, device))
                start, first = runs[-1].end, number
        return cls(tuple(runs))

    def band(self, width: int, window: int, device: torch.device) -> Tensor:
        """What a token of a row may see when it sees `window` tokens, itself among them: bool (width, width)."""
        if (width, window) not in self._bands:
            places = torch.arange(width, device=device)
            distance = places[:, None] - places[None, :]
            self._bands[width, window] = (distance >= 0) & (distance < window)
        return self._bands[width, window]


def packed_attention(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, *,
    sequences: Sequences | None = None, dropout: float = 0.0, scaling: float | None = None,
    is_causal: bool | None = None, sliding_window: int | None = None, **others: Any,
) -> tuple[Tensor, None]:  # fmt: skip
    """Attention as transformers calls it, `sequences` being passed down from the model's call.

    Args:
        module: the attention layer.
        query, key, value: (1, heads, t, size); fewer heads in keys and values where groups of queries share them.
        attention_mask: None: the sequences say it.
        sequences: of the row.
        dropout, scaling, sliding_window: of the layer.

    Returns:
        (1, t, heads, size), and no weights.

    Raises:
        AttentionUnsupported: the layer wants something else, or passes the sequences on to nobody.
    """
    wanted = [name for name in _CHANGES_SCORES if others.get(name) is not None]
    if wanted or sequences is None or attention_mask is not None or is_causal is False:
        kind = wanted[0] if wanted else "a mask of its own"
        raise AttentionUnsupported(f"attention with {kind}, which trainer.packing does not know")
    shared = query.shape[1] // key.shape[1]
    # With a mask no fused kernel of CUDA's takes fewer heads of keys and values: all scores would be written out.
    few_heads = sliding_window is None
    if shared > 1 and not few_heads:
        key, value = (tensor.repeat_interleave(shared, dim=1) for tensor in (key, value))
    attended = []
    for run in sequences.runs:
        q, k, v = (_as_rows(tensor[0, :, run.start : run.end].transpose(0, 1), run) for tensor in (query, key, value))
        narrow = sliding_window is not None and run.width > sliding_window
        band = sequences.band(run.width, sliding_window, query.device) if narrow and sliding_window else None
        found = functional.scaled_dot_product_attention(
            q, k, v, band, dropout_p=dropout, is_causal=band is None, scale=scaling, enable_gqa=shared > 1 and few_heads
        )
        flat = found.transpose(1, 2).flatten(0, 1)
        attended.append(flat if run.places is None else _Collect.apply(flat, run.places))  # type: ignore[no-untyped-call]
    return (torch.cat(attended) if len(attended) > 1 else attended[0]).unsqueeze(0), None


def why_not_packed(model: PreTrainedModel) -> str | None:
    """What is known of a model class that keeps it from being packed; None when nothing is."""
    config = model.config.get_text_config()
    others = set(getattr(config, "layer_types", None) or ()) - {"full_attention", "sliding_attention"}
    if not (model._supports_attention_backend and model._supports_flash_attn):
        return f"{type(model).__name__} does not let its attention be replaced"
    if others:
        return f"it has layers of kind {', '.join(sorted(others))}"
    if getattr(config, "attn_logit_softcapping", None):
        return "it caps the scores of its attention"
    return None


def packed_kernel(dtype: torch.dtype, device: torch.device) -> str:
    """The attention of packed rows that is fastest here."""
    flash = device.type == "cuda" and dtype != torch.float32 and is_flash_attn_2_available()
    return FLASH if flash else PACKED


def attention_of(model: PreTrainedModel) -> str:
    """The attention of the language model."""
    return str(model.config.get_text_config()._attn_implementation)


def set_attention(model: PreTrainedModel, name: str) -> None:
    """Sets the attention of the language model; a vision tower beside it keeps its own. Raises AttentionUnsupported."""
    config, text = model.config, model.config.get_text_config()
    part = next((key for key in config.sub_configs if getattr(config, key) is text), None)
    model.set_attn_implementation({part: name} if part else name)
    if attention_of(model) != name:
        raise AttentionUnsupported(
            f"{type(model).__name__} keeps the attention {attention_of(model)!r} instead of {name!r}"
        )


def sequence_arguments(model: PreTrainedModel, lengths: Sequence[int], device: torch.device) -> dict[str, Any]:
    """What the call of a packed model needs besides tokens and positions."""
    if attention_of(model) == PACKED:
        return {"sequences": Sequences.of(lengths, device)}
    ends = torch.tensor([0, *np.cumsum(lengths)], dtype=torch.int32, device=device)
    longest = max(lengths)
    return {"cu_seq_lens_q": ends, "cu_seq_lens_k": ends, "max_length_q": longest, "max_length_k": longest}


def _similar(first: int, other: int) -> bool:
    # Short ones cost less as padding than as calls of their own.
    return max(first, other) <= _SHORT or first * _SIMILAR <= other <= first / _SIMILAR


def _run(lengths: np.ndarray[Any, np.dtype[np.int64]], start: int, device: torch.device) -> Run:
    width, tokens = int(lengths.max()), int(lengths.sum())
    if width * len(lengths) == tokens:
        return Run(start, start + tokens, len(lengths), width, None)
    row_starts = np.arange(len(lengths)) * width
    within = np.arange(tokens) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    places = torch.from_numpy(np.repeat(row_starts, lengths) + within).to(device)
    return Run(start, start + tokens, len(lengths), width, places)


def _as_rows(tokens: Tensor, run: Run) -> Tensor:
    """(m, heads, size) as (rows, heads, width, size)."""
    if run.places is not None:
        tokens = _Spread.apply(tokens, run.places, run.rows * run.width)  # type: ignore[no-untyped-call]
    return tokens.reshape(run.rows, run.width, *tokens.shape[1:]).transpose(1, 2)


class _Spread(torch.autograd.Function):
    """Puts (m, ...) at m of n places, zeros at the others. torch's own backward of this would add up, which is slow."""

    @staticmethod
    def forward(ctx: Any, tokens: Tensor, places: Tensor, count: int) -> Tensor:
        ctx.save_for_backward(places)
        spread = tokens.new_zeros(count, *tokens.shape[1:])
        spread[places] = tokens
        return spread

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        (places,) = ctx.saved_tensors
        return gradient[places], None, None


class _Collect(torch.autograd.Function):
    """The inverse: (m, ...) from m of n places."""

    @staticmethod
    def forward(ctx: Any, spread: Tensor, places: Tensor) -> Tensor:
        ctx.save_for_backward(places)
        ctx.count = len(spread)
        return spread[places]

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        (places,) = ctx.saved_tensors
        spread = gradient.new_zeros(ctx.count, *gradient.shape[1:])
        spread[places] = gradient
        return spread, None


AttentionInterface.register(PACKED, packed_attention)
