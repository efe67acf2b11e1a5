"""What `train` says before it starts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from command_line import StreamRL

TEMPLATE = (
    "{% for m in messages if m.role != 'tool' %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
)
PROMPT = "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"


@pytest.mark.parametrize("options", [["--dry-run"], []])
def test_one_line_says_what_the_chat_template_can_do_and_what_it_cannot_and_why(
    stream_rl: StreamRL, settings: Path, tiny_model: Path, monkeypatch: pytest.MonkeyPatch, options: list[str]
) -> None:
    def started(*_: Any, **__: Any) -> dict[str, Any]:
        return {"finished": True}

    monkeypatch.setattr("stream_rl.launch.train", started)
    chat = settings.parent / "chat.jinja"
    chat.write_text(TEMPLATE + PROMPT)
    answer = stream_rl("train", settings, f"model.chat_template={chat}", *options)
    assert answer.code == 0
    (line,) = [line for line in answer.out.splitlines() if line.startswith("chat template of ")]
    assert line.startswith(
        f"chat template of {tiny_model}: usable observations: user; tools are not shown to the model"
    )
    assert "; tool observations refused: the chat template drops observations of role 'tool' in silence" in line
