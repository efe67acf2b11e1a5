"""How an environment comes back, and how its observations are shown."""

from __future__ import annotations

import numpy as np
import pytest

from stream_rl.envs.base import (
    BaseInteractionEnv,
    ResumeClass,
    format_observation,
    is_empty,
    is_finite,
    is_message,
    resume_class,
)
from stream_rl.errors import ImageError


class Snapshot(BaseInteractionEnv):
    def state_dict(self):
        return {}

    def load_state_dict(self, state):
        return None


class Half(BaseInteractionEnv):
    def state_dict(self):
        return {}


class Deterministic(BaseInteractionEnv):
    deterministic = True


def test_the_resume_class_is_what_the_environment_implements():
    assert resume_class(Snapshot()) is ResumeClass.SNAPSHOT
    assert resume_class(Deterministic()) is ResumeClass.REPLAY
    assert resume_class(Half()) is ResumeClass.RESTART
    assert resume_class(object()) is ResumeClass.RESTART


def test_an_observation_is_a_user_message_unless_it_says_otherwise():
    assert format_observation({"obs_str": "x"}) == {"role": "user", "content": "x"}
    assert format_observation({"obs_str": "x", "role": "tool"}) == {"role": "tool", "content": "x"}


def test_what_is_none_is_not_said():
    message = format_observation({"obs_str": None, "role": None, "multi_modal_data": {"image": "a"}})
    assert message == {"role": "user", "content": [{"type": "image", "image": "a"}]}


def test_half_a_surrogate_pair_is_shown_as_a_question_mark():
    """As a program's output has it that was read with `surrogateescape`: no tokenizer takes it."""
    assert format_observation({"obs_str": "a\udc80b"})["content"] == "a?b"
    assert not is_message({"role": "user", "content": "a\udc80b"})
    assert not is_message({"role": "user", "content": [{"type": "text", "text": "\udc80"}]})


@pytest.mark.parametrize(("value", "finite"), [(1, True), (True, True), (10**400, False), ("1", False), (None, False)])
def test_a_reward_is_a_number_that_a_float_can_hold(value, finite):
    assert is_finite(value) is finite


@pytest.mark.parametrize("name", ["image", "images"])
def test_images_stand_before_the_text(name):
    message = format_observation({"obs_str": "look", "multi_modal_data": {name: ["a", "b"]}})

    assert message["content"] == [
        {"type": "image", "image": "a"}, {"type": "image", "image": "b"}, {"type": "text", "text": "look"},
    ]  # fmt: skip


@pytest.mark.parametrize("image", [b"a", "a", {"bytes": b"a"}])
def test_a_single_image_needs_no_list(image):
    assert format_observation({"multi_modal_data": {"image": image}})["content"] == [{"type": "image", "image": image}]


@pytest.mark.parametrize("data", [{"image": ["a"], "video": ["v"]}, {"pictures": ["a"]}, ["a"], {"pixel_values": [1]}])
def test_what_would_be_left_out_of_an_observation_is_refused(data):
    with pytest.raises(ImageError, match="multi_modal_data may have images, a list under 'image' or 'images', not "):
        format_observation({"obs_str": "look", "multi_modal_data": data})


def test_nothing_to_show_is_empty():
    assert is_empty(None)
    assert is_empty({"obs_str": ""})
    assert not is_empty({"multi_modal_data": {"images": ["a"]}})


@pytest.mark.parametrize("data", [None, {}, [], {"image": []}, {"image": None}, {"images": (), "image": []}])
def test_no_images_are_nothing_to_show(data):
    assert is_empty({"multi_modal_data": data})
    assert format_observation({"obs_str": "look", "multi_modal_data": data}) == {"role": "user", "content": "look"}


def test_an_array_is_one_image_and_never_a_question_of_truth():
    array = np.zeros((2, 2, 3), np.uint8)
    for data in ({"image": array}, {"images": [array]}):
        assert not is_empty({"multi_modal_data": data})
        assert format_observation({"multi_modal_data": data})["content"][0]["image"] is array
    assert not is_empty({"multi_modal_data": array})
    with pytest.raises(ImageError, match="multi_modal_data may have images"):
        format_observation({"multi_modal_data": array})
