"""slime's helpers for images, for modules that import them.

A rollout function shows images by `context.observe`; with slime's own `post` it cannot, so `GenerateState` offers no
processor and these are of use to other code alone.
"""

from __future__ import annotations

import base64
import io
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from PIL import Image

__all__ = [
    "build_processor_kwargs",
    "encode_image_for_rollout_engine",
    "load_processor",
    "load_tokenizer",
    "process_vision_info",
]


def encode_image_for_rollout_engine(image: Image.Image) -> str:
    """An image as PNG in base64, in three colours."""
    data = io.BytesIO()
    image.convert("RGB").save(data, "PNG")
    return base64.b64encode(data.getvalue()).decode()


def load_tokenizer(name_or_path: str, **named: Any) -> Any:
    """The Hugging Face tokenizer of a model."""
    from transformers import AutoTokenizer  # noqa: PLC0415 - seconds to import: only who calls this pays

    return AutoTokenizer.from_pretrained(name_or_path, **named)


def load_processor(name_or_path: str, **named: Any) -> Any:
    """The Hugging Face processor of a model, None for one that reads text only."""
    from transformers import AutoProcessor, ProcessorMixin  # noqa: PLC0415 - as above

    try:
        found = AutoProcessor.from_pretrained(name_or_path, **named)  # type: ignore[no-untyped-call]
    except (OSError, ValueError):
        return None
    return found if isinstance(found, ProcessorMixin) else None


def process_vision_info(prompt: Iterable[Mapping[str, Any]], processor: Any = None) -> dict[str, list[Any] | None]:
    """The images in the parts of chat messages, in order, as they stand there; videos there are none."""
    parts = [part for message in prompt for part in _parts(message.get("content"))]
    return {"images": [part["image"] for part in parts if "image" in part] or None, "videos": None}


def build_processor_kwargs(multimodal_inputs: Mapping[str, Any] | None) -> dict[str, Any]:
    """What a processor is called with besides the text: the inputs that there are."""
    return {name: value for name, value in (multimodal_inputs or {}).items() if value is not None}


def _parts(content: Any) -> Sequence[Mapping[str, Any]]:
    return [part for part in content if isinstance(part, Mapping)] if isinstance(content, list | tuple) else []
