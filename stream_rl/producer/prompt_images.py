"""Where a dataset row's images stand in its prompt: at the marks `<image>`, in order, or before everything."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from stream_rl.envs.base import Message
from stream_rl.errors import DataError
from stream_rl.multimodal.reading import LONGEST_PATH

__all__ = ["IMAGE_MARK", "marks_of", "with_images"]

IMAGE_MARK = "<image>"


def with_images(prompt: str | Sequence[Message], images: Any, where: str, folder: Path) -> str | Sequence[Message]:
    """The prompt as chat messages with image parts; the prompt itself where the row has no images.

    Args:
        prompt: text or chat messages; images that these have already stay where they are.
        images: one image or a list of them, in any form that can be read; or None.
        where: the row, for messages.
        folder: what relative paths start from.

    Raises:
        DataError: the prompt has another number of marks than there are images.
    """
    given = [] if images is None else list(images) if isinstance(images, list | tuple) else [images]
    messages: Sequence[Message] = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt
    marks = marks_of(messages)
    if marks not in (0, len(given)):
        raise DataError(f"{where} has {marks} marks {IMAGE_MARK} for {len(given)} images")
    if not given:
        return prompt
    left = iter([{"type": "image", "image": _from(folder, image)} for image in given])
    if not marks:
        first = next((number for number, message in enumerate(messages) if message["role"] == "user"), 0)
        return [
            {**message, "content": [*left, *_parts(message["content"], left)]} if number == first else message
            for number, message in enumerate(messages)
        ]
    return [{**m, "content": _parts(m["content"], left)} if _marks(m) else m for m in messages]


def marks_of(prompt: str | Sequence[Message]) -> int:
    """How many marks text or chat messages have."""
    return prompt.count(IMAGE_MARK) if isinstance(prompt, str) else sum(map(_marks, prompt))


def _marks(message: Message) -> int:
    content = message.get("content") or ""
    texts = [content] if isinstance(content, str) else [part.get("text") or "" for part in content]
    return sum(text.count(IMAGE_MARK) for text in texts)


def _parts(content: str | Sequence[Mapping[str, Any]], left: Iterator[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Content as parts, with those that are left at its marks; without any left, marks stay text."""
    texts = [{"type": "text", "text": content}] if isinstance(content, str) else content
    return list(itertools.chain.from_iterable(_split(part, left) for part in texts))


def _split(part: Mapping[str, Any], left: Iterator[Mapping[str, Any]]) -> Iterator[Mapping[str, Any]]:
    if part.get("type", "text") != "text":
        yield part
        return
    before, mark, after = part["text"].partition(IMAGE_MARK)
    image = next(left, None) if mark else None
    if image is None:
        if part["text"]:
            yield {"type": "text", "text": part["text"]}
        return
    if before:
        yield {"type": "text", "text": before}
    yield image
    yield from _split({"type": "text", "text": after}, left)


def _from(folder: Path, image: Any) -> Any:
    if isinstance(image, Mapping) and image.get("path") and not image.get("bytes"):
        return {**image, "path": str(folder / image["path"])}
    if isinstance(image, str) and len(image) <= LONGEST_PATH and ":" not in image:
        return str(folder / image)
    return image
