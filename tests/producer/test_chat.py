"""Token truth on real tokenizers, and on templates that have each family's trait."""

from __future__ import annotations

import copy
import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoTokenizer

from stream_rl.config import ModelConfig
from stream_rl.errors import ImageError, ModelError
from stream_rl.models.smollm2 import find_smollm2
from stream_rl.models.tiny_text import WORDS, tiny_tokenizer
from stream_rl.producer.chat import ChatEncoder, load_chat_encoder
from stream_rl.producer.chat_probe import probe

ASSISTANT = "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
CHATML = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}" + ASSISTANT
NO_NEWLINE = CHATML.replace("<|im_end|>\n", "<|im_end|>")
TRIMMED = CHATML.replace("m.content", "m.content | trim")
STRIPS_THINKING = CHATML.replace("m.content", "(m.content.split('</think>')[-1] if not loop.last else m.content)")
EMPTY_THINKING_WHEN_LAST = CHATML.replace(
    "{{ m.content }}", "{% if loop.last and m.role == 'assistant' %}<think></think>{% endif %}{{ m.content }}"
)
DROPS_TOOLS = CHATML.replace("{% for m in messages %}", "{% for m in messages if m.role != 'tool' %}")
NO_STOP = CHATML.replace("<|im_end|>\n", "\n")
ROLE_IS_STOP = "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}{% endfor %}" + (
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
CLOSES_LAST = CHATML.replace("<|im_end|>", "{% if loop.last %}.{% endif %}<|im_end|>")
ALTERNATES = "{% if messages | length > 3 %}{{ raise_exception('too long') }}{% endif %}" + CHATML
SYSTEM_MOVES_IN = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n"
    "{% if loop.last and messages[0].role == 'system' %}{{ messages[0].content }}{% endif %}"
    "{{ m.content }}<|im_end|>\n{% endfor %}" + ASSISTANT
)
TOOLS = NO_NEWLINE.replace(
    "{{ m.content }}", "{{ m.content }}{% if m.tool_calls %}{{ m.tool_calls | tojson }}{% endif %}"
)


@pytest.fixture(scope="session")
def smollm2():
    file = find_smollm2()
    return AutoTokenizer.from_pretrained(str(file.parent), gguf_file=file.name)


@pytest.fixture
def encoder(smollm2):
    """`encoder(template)`: SmolLM2's vocabulary under a template."""

    def make(template: str, **args) -> ChatEncoder:
        tokenizer = copy.copy(smollm2)
        tokenizer.chat_template = template
        return ChatEncoder(tokenizer, (tokenizer.eos_token_id,), args)

    return make


def user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


def incremental(chat: ChatEncoder, conversation: list[dict[str, str]], answers: list[list[int]]) -> list[int]:
    """Ids of a conversation as a turn loop builds them: a prompt, then answers and observation deltas."""
    ids = chat.encode_prompt(conversation[:1]).tolist()
    for answer, observation in zip(answers, conversation[1:], strict=True):
        ids += [*answer, *chat.encode_observation([observation], np.array(answer, np.int32)).tolist()]
    return ids


words = st.sampled_from([word for word in WORDS if not word.startswith("<") and word != "\n"])


class TestAgainstTheWholeConversation:
    @settings(max_examples=50, deadline=None)
    @given(said=st.lists(st.tuples(words, words, st.booleans()), min_size=1, max_size=5))
    def test_incremental_ids_equal_the_template_applied_to_everything(self, said):
        """Whether a turn ended with its end token or was cut before it."""
        tokenizer = tiny_tokenizer()
        chat = ChatEncoder(tokenizer, (tokenizer.eos_token_id,))
        messages, answers, whole = [user("guess")], [], [user("guess")]
        for answer, observation, ended in said:
            ids = tokenizer.encode(answer, add_special_tokens=False)
            answers.append([*ids, tokenizer.eos_token_id] if ended else ids)
            messages.append(user(observation))
            whole += [{"role": "assistant", "content": answer}, user(observation)]

        assert incremental(chat, messages, answers) == chat.encode_prompt(whole).tolist()

    @pytest.mark.parametrize("template", [CHATML, NO_NEWLINE, TRIMMED, EMPTY_THINKING_WHEN_LAST])
    @pytest.mark.parametrize("text", ["Yes.", "Two\nlines", "  padded "])
    def test_on_a_real_vocabulary(self, encoder, smollm2, template, text):
        chat = encoder(template)
        answer = [*smollm2.encode("7", add_special_tokens=False), smollm2.eos_token_id]
        whole = [user("What?"), {"role": "assistant", "content": "7"}, user(text)]

        assert incremental(chat, [user("What?"), user(text)], [answer]) == chat.encode_prompt(whole).tolist()

    def test_smollm2s_own_template(self, smollm2):
        chat = ChatEncoder(smollm2, (smollm2.eos_token_id,))
        answer = [*smollm2.encode("7", add_special_tokens=False), smollm2.eos_token_id]
        whole = [user("What?"), {"role": "assistant", "content": "7"}, user("Sure?")]

        assert incremental(chat, [user("What?"), user("Sure?")], [answer]) == chat.encode_prompt(whole).tolist()


class TestDelta:
    def test_a_cut_turn_is_closed_and_an_ended_one_is_not_closed_twice(self, encoder, smollm2):
        chat, end = encoder(CHATML), smollm2.eos_token_id
        ended = chat.encode_observation([user("x")], np.array([42, end], np.int32)).tolist()
        cut = chat.encode_observation([user("x")], np.array([42], np.int32)).tolist()

        assert cut == [end, *ended]
        assert smollm2.decode(ended) == "\n<|im_start|>user\nx<|im_end|>\n<|im_start|>assistant\n"

    def test_stripped_thinking_in_the_history_does_not_touch_the_delta(self, encoder, smollm2):
        chat = encoder(STRIPS_THINKING)
        delta = chat.encode_observation([user("x")], np.array([42, smollm2.eos_token_id], np.int32))

        assert smollm2.decode(delta.tolist()) == "\n<|im_start|>user\nx<|im_end|>\n<|im_start|>assistant\n"

    def test_where_the_next_role_is_the_stop_token_it_is_not_doubled(self, smollm2):
        chat = role_stop_encoder(smollm2)
        opening, answer = chat.stop_token_ids[0], 42
        ended = chat.encode_observation([user("x")], np.array([answer, opening], np.int32)).tolist()
        cut = chat.encode_observation([user("x")], np.array([answer], np.int32)).tolist()

        assert cut == [opening, *ended]

    def test_a_stop_that_does_not_fit_the_next_role_is_refused(self, smollm2):
        chat = role_stop_encoder(smollm2)

        with pytest.raises(ModelError, match="where the model stopped with"):
            chat.encode_observation([user("x")], np.array([42, chat.stop_token_ids[1]], np.int32))

    def test_tool_messages_that_follow_each_other_are_rendered_together(self, encoder, smollm2):
        tools = [{"role": "tool", "name": "f", "tool_call_id": f"c{n}", "content": f"result {n}"} for n in range(2)]
        delta = encoder(TOOLS).encode_observation(tools, np.array([smollm2.eos_token_id], np.int32))

        text = smollm2.decode(delta.tolist())
        assert text.index("result 0") < text.index("result 1")
        assert text.count("assistant") == 1

    def test_its_work_does_not_grow_with_what_was_said_before(self, encoder):
        """It never sees the conversation, and a repeated observation is not rendered again."""
        chat = encoder(CHATML)
        assert not chat.report.refused
        rendered = []
        render, chat.render = chat.render, lambda *given: rendered.append(given) or render(*given)
        for _ in range(50):
            chat.encode_observation([user("higher")], np.array([42], np.int32))

        assert len(rendered) == 2, "those of one delta"
        assert max(len(messages) for messages, _ in rendered) == 3

    @pytest.mark.parametrize(
        ("template", "role", "reason"),
        [
            (DROPS_TOOLS, "tool", "drops observations of role 'tool'"),
            (NO_STOP, "user", "no stop token between the turns"),
            ("{{ raise_exception('never') }}", "user", "never"),
            ("constant<|im_end|>", "user", "does not show the assistant's text"),
            (CLOSES_LAST, "user", "closes an assistant turn differently"),
        ],
    )  # fmt: skip
    def test_a_template_that_cannot_be_appended_to_is_refused_with_the_reason(self, encoder, template, role, reason):
        with pytest.raises(ModelError, match=reason):
            encoder(template).encode_observation([{"role": role, "content": "seen"}], np.array([42], np.int32))

    def test_a_message_that_is_no_json_is_refused(self, encoder):
        message = {"role": "user", "content": "seen", 5: "x"}

        with pytest.raises(ModelError, match="a message is no JSON"):
            encoder(CHATML).encode_observation([message], np.array([42], np.int32))

    def test_an_image_for_a_model_that_reads_text_is_refused(self, encoder):
        message = {"role": "user", "content": [{"type": "image", "image": "x.png"}, {"type": "text", "text": "Look"}]}

        with pytest.raises(ImageError, match=r"'Look'.*reads text only"):
            encoder(CHATML).encode_observation([message], np.array([42], np.int32))


class TestProbe:
    def test_a_plain_template_is_found_usable(self, encoder):
        report = probe(encoder(CHATML))

        assert report.append_only
        assert report.thinking_kept
        assert report.white_space_kept
        assert "user" not in report.refused

    def test_what_a_template_rewrites_is_reported_not_refused(self, encoder):
        stripping, trimming = probe(encoder(STRIPS_THINKING)), probe(encoder(TRIMMED))

        assert not stripping.thinking_kept
        assert not trimming.white_space_kept
        assert "user" not in {**stripping.refused, **trimming.refused}
        assert "thinking stripped" in str(stripping)

    @pytest.mark.parametrize(
        ("template", "kind", "reason"),
        [
            (ALTERNATES, "user", "a longer conversation"),
            (SYSTEM_MOVES_IN, "user", "a system message"),
            (DROPS_TOOLS, "tool", "drops observations"),
        ],
    )
    def test_what_cannot_be_used_is_named(self, encoder, template, kind, reason):
        report = probe(encoder(template))

        assert reason in report.refused[kind]
        assert f"{kind} observations refused" in str(report)

    def test_tools_that_a_template_hides_are_reported(self, encoder):
        tools = [{"type": "function", "function": {"name": "calculator"}}]

        assert probe(encoder(CHATML, tools=tools), tools).tools_shown is False
        assert probe(encoder("{{ tools | tojson }}" + CHATML, tools=tools), tools).tools_shown is True


class TestLoading:
    def test_a_tokenizer_without_a_template_names_the_setting(self, tiny_model, tmp_path):
        tokenizer = tiny_tokenizer()
        tokenizer.chat_template = None
        tokenizer.save_pretrained(tmp_path)

        with pytest.raises(ModelError, match=r"no chat template: set model\.chat_template"):
            load_chat_encoder(ModelConfig(path=str(tmp_path)))

    def test_a_template_file_replaces_the_tokenizers_own(self, tiny_model, tmp_path):
        (tmp_path / "chat.jinja").write_text("{{ messages[0].content }}")
        chat = load_chat_encoder(ModelConfig(path=str(tiny_model), chat_template=str(tmp_path / "chat.jinja")))

        assert chat.encode_prompt([user("guess")]).tolist() == [WORDS.index("guess")]

    @pytest.mark.parametrize(
        ("fields", "name"),
        [({"path": "/nowhere"}, "model.path"), ({"chat_template": "/nowhere"}, "model.chat_template")],
    )
    def test_what_is_missing_is_named(self, tiny_model, fields, name):
        with pytest.raises(ModelError, match=name):
            load_chat_encoder(ModelConfig(**{"path": str(tiny_model), **fields}))

    def test_the_models_further_end_tokens_stop_too(self, tiny_model, tmp_path):
        tiny_tokenizer().save_pretrained(tmp_path)
        (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": [4, 1]}))

        assert load_chat_encoder(ModelConfig(path=str(tmp_path))).stop_token_ids == (4, 1)


def role_stop_encoder(smollm2) -> ChatEncoder:
    """A template whose turns are opened by role tokens that are the stop tokens."""
    tokenizer = copy.deepcopy(smollm2)
    tokenizer.add_special_tokens({"additional_special_tokens": ["<|user|>", "<|tool|>", "<|assistant|>"]})
    tokenizer.chat_template = ROLE_IS_STOP
    return ChatEncoder(tokenizer, tuple(tokenizer.convert_tokens_to_ids(["<|user|>", "<|tool|>"])))
