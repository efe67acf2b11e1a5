"""The tree of errors is the one that the module's docstring draws."""

from __future__ import annotations

import re

import pytest

from stream_rl import errors


def drawn_tree() -> dict[str, str]:
    """Error -> its base, read off the drawing by indentation (four columns a level)."""
    bases: dict[str, str] = {}
    path: list[str] = []
    for line in (errors.__doc__ or "").splitlines():
        if found := re.match(r"([│├└─ ]*)([A-Z]\w+)(\s|$)", line):
            depth = len(found[1]) // 4
            path[depth:] = [found[2]]
            bases[found[2]] = path[depth - 1] if depth else "Exception"
    return bases


def defined() -> dict[str, str]:
    return {
        name: value.__bases__[0].__name__
        for name, value in vars(errors).items()
        if isinstance(value, type) and issubclass(value, Exception)
    }


def test_the_drawing_is_the_classes() -> None:
    drawn = drawn_tree()
    drawn.pop("Every", None)
    assert drawn == defined()


def test_all_names_every_error() -> None:
    assert sorted(errors.__all__) == sorted(defined())


@pytest.mark.parametrize("name", errors.__all__)
def test_every_error_says_what_it_is(name: str) -> None:
    assert (getattr(errors, name).__doc__ or "").strip()


def test_a_mismatch_carries_where_to_send_from() -> None:
    assert errors.JournalMismatch("position 7 of 3", 3).expected == 3


def test_an_action_error_carries_its_turns_reward() -> None:
    assert errors.ActionError("no number", 0.5).reward == 0.5
