"""What goes to an engine and what comes back: the pure half of the client. SGLang's names stop here.

Invariants of a `Generation`: `tokens`, `log_probs` and the spans have one length, and the spans have no gaps. The
log-probs are of the distribution that was sampled from, logits / temperature: whatever would make them describe another
one (top-p, top-k, penalties, min_new_tokens) cannot be asked for. The stop token is part of `tokens`.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypedDict

import numpy as np

from stream_rl.errors import EngineError, EngineRejected, EngineUnavailable, PromptMismatch
from stream_rl.sample import Float32, Int32, VersionSpan, WeightVersion

__all__ = [
    "Generation", "ImageInputs", "RequestOptions", "SamplingParams", "check_given", "check_ids", "check_read",
    "decode_generation", "encode_request",
]  # fmt: skip


FINISH_REASONS = ("stop", "length", "abort")


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How to sample. Temperature 0 is greedy.

    `sampling_seed` works on an engine that was started `seeded`, and there every request needs its own.
    """

    max_new_tokens: int
    temperature: float = 1.0
    stop_token_ids: tuple[int, ...] = ()
    sampling_seed: int | None = None

    def __post_init__(self) -> None:
        if self.max_new_tokens < 1:
            raise ValueError(f"max_new_tokens={self.max_new_tokens} asks for nothing")
        if self.temperature < 0:
            raise ValueError(f"temperature={self.temperature} is negative")


@dataclass(frozen=True, slots=True)
class ImageInputs:
    """The images among a prompt's tokens, in order.

    placeholder  the id that stands for one feature of an image
    tokens       features of each: so many placeholders follow each other in the prompt
    data         each image as its JSON stands in a request: a data URL
    """

    placeholder: int
    tokens: tuple[int, ...]
    data: tuple[Any, ...]


class RequestOptions(TypedDict, total=False):
    """What a request may have besides its ids and how to sample: `EngineClient.generate` says what each is."""

    images: ImageInputs | None
    rid: str | None
    extra_key: str | None


@dataclass(frozen=True, slots=True)
class Generation:
    """What one request gave.

    tokens          int32 (g,)    generated ids, stop token included; empty for a request aborted in the queue
    log_probs       float32 (g,)  of the distribution sampled from
    spans           which weight version wrote which of them; several where weights changed meanwhile
    finish_reason   "stop", "length" or "abort"; an aborted one keeps the tokens it had
    queue_seconds, engine_seconds   time in the engine's queue, and in the engine altogether
    """

    tokens: Int32
    log_probs: Float32
    spans: tuple[VersionSpan, ...]
    finish_reason: str
    prompt_tokens: int = 0
    cached_tokens: int = 0
    queue_seconds: float = 0.0
    engine_seconds: float = 0.0


def check_ids(input_ids: Int32, vocab_size: int) -> None:
    """Refuses what would kill the server. Raises EngineRejected with the first id outside [0, vocab_size)."""
    if not len(input_ids):
        raise EngineRejected("the prompt has no tokens")
    if input_ids.view(np.uint32).max() >= vocab_size:  # an id below 0 is above all others then
        at = int(np.flatnonzero((input_ids < 0) | (input_ids >= vocab_size))[0])
        raise EngineRejected(f"token {int(input_ids[at])} at {at} is outside the model's vocabulary of {vocab_size}")


def check_read(generation: Generation, sent: int) -> None:
    """Whether the engine read the tokens that it was sent; it may have written a prompt with images anew.

    Only what was aborted in a queue is answered without a count. Raises PromptMismatch.
    """
    read = generation.prompt_tokens
    if read != sent and (read or generation.finish_reason != "abort"):
        what = f"a prompt of {read} tokens" if read else "a prompt whose length it does not say,"
        raise PromptMismatch(f"the engine read {what} where {sent} were sent")


def check_given(generation: Generation, asked: int) -> None:
    """Whether the engine gave what it was asked for: a token at least, unless it was aborted, and no more than `asked`.

    Raises EngineError: a turn without a token would be one without loss, and one with more would break the budgets.
    """
    given = len(generation.tokens)
    if not given and generation.finish_reason != "abort":
        raise EngineError(f"the engine ended with {generation.finish_reason!r} and gave no token")
    if given > asked:
        raise EngineError(f"the engine gave {given} tokens where {asked} were asked for")


def encode_request(
    input_ids: Int32, sampling: SamplingParams, *, rid: str, extra_key: str | None, images: ImageInputs | None = None
) -> dict[str, Any]:
    """The body of SGLang's `/generate`, which repeats an image's placeholder itself.

    Raises:
        EngineRejected: placeholders and features do not agree.
    """
    params: dict[str, Any] = {
        "max_new_tokens": sampling.max_new_tokens,
        "temperature": sampling.temperature,
        # Said aloud, so that no default of the model's or of the server's truncates the distribution.
        "top_p": 1.0,
        "top_k": 1 if sampling.temperature == 0 else -1,
    }
    if sampling.stop_token_ids:
        params["stop_token_ids"] = sampling.stop_token_ids
    if sampling.sampling_seed is not None:
        params["sampling_seed"] = sampling.sampling_seed
    body: dict[str, Any] = {"input_ids": input_ids, "sampling_params": params, "return_logprob": True, "rid": rid}
    if images is not None:
        body |= {"input_ids": _one_each(input_ids, images), "image_data": images.data}
    if extra_key is not None:
        body["extra_key"] = extra_key
    return body


def decode_generation(answer: Mapping[str, Any] | None) -> Generation:
    """The inverse for `/generate`'s answer; None is one that was not JSON.

    Raises:
        EngineError: ids, log-probs and spans disagree, a log-prob is no number, the finish reason is unknown, or
            something is missing.
        EngineUnavailable: the weights have no version: the engine started, and nothing was published to it since; or it
            was no engine that answered.
    """
    if not isinstance(answer, Mapping) or "meta_info" not in answer:
        raise EngineUnavailable(f"what answered is no engine: {answer}")
    try:
        return _decoded(answer, answer["meta_info"])
    except (LookupError, TypeError, AttributeError, OverflowError) as error:
        raise EngineError(f"the engine's answer has another form: {type(error).__name__}: {error}") from error


def _decoded(answer: Mapping[str, Any], meta: Mapping[str, Any]) -> Generation:
    tokens = np.array(answer["output_ids"], np.int32)
    log_probs = np.array([row[0] for row in meta.get("output_token_logprobs") or ()], np.float32)
    if len(tokens) != len(log_probs):
        raise EngineError(f"the engine gave {len(tokens)} tokens but {len(log_probs)} log-probs")
    if not np.isfinite(log_probs).all():  # JSON has no NaN: it comes as null
        raise EngineError(f"the engine's log-probs are not finite, as its weights may be: {log_probs.tolist()[:8]}")
    return Generation(
        tokens=tokens,
        log_probs=log_probs,
        spans=_spans(meta.get("weight_versions") or (), meta["weight_version"], len(tokens)),
        finish_reason=_finish_reason(meta["finish_reason"]["type"]),
        prompt_tokens=meta.get("prompt_tokens") or 0,
        cached_tokens=meta.get("cached_tokens") or 0,
        queue_seconds=meta.get("queue_time") or 0.0,
        engine_seconds=meta.get("e2e_latency") or 0.0,
    )


def _finish_reason(given: str) -> str:
    if given not in FINISH_REASONS:
        raise EngineError(f"the engine ended for an unknown reason, {given!r}: known are {', '.join(FINISH_REASONS)}")
    return given


def _one_each(input_ids: Int32, images: ImageInputs) -> Int32:
    """The ids with one placeholder for each image."""
    places, counts = np.flatnonzero(input_ids == images.placeholder), np.array(images.tokens, np.int64)
    firsts = np.cumsum(counts) - counts
    if len(places) != counts.sum() or len(counts) != len(images.data):
        raise EngineRejected(
            f"the prompt has {len(places)} placeholders for {counts.sum()} features of {len(images.data)} images"
        )
    if (places[firsts + counts - 1] - places[firsts] != counts - 1).any():
        raise EngineRejected("the placeholders of an image do not stand side by side in the prompt")
    kept = np.ones(len(input_ids), bool)
    kept[places] = False
    kept[places[firsts]] = True
    ids: Int32 = input_ids[kept]
    return ids


def _spans(given: Sequence[Mapping[str, Any]], version: str, length: int) -> tuple[VersionSpan, ...]:
    if not length:
        return ()
    whole = given or ({"start": 0, "end": length, "version": version},)
    try:
        spans = tuple(VersionSpan(span["start"], span["end"], WeightVersion.parse(span["version"])) for span in whole)
    except ValueError as error:
        raise EngineUnavailable(f"the engine's weights have no version yet ({version!r}): publish one first") from error
    joined = all(left.end == right.start for left, right in itertools.pairwise(spans))
    if not joined or spans[0].start != 0 or spans[-1].end != length:
        raise EngineError(f"the engine's version spans {whole} do not cover {length} tokens")
    return spans
