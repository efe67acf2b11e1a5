r"""Answers in \boxed{}, found and compared, by the names that slime has for it; the comparison is `math_answers`'.

Numbers are the same by value, fractions that could be reduced included; what has no value is compared as text.
"""

from __future__ import annotations

from stream_rl.envs.math_answers import boxed_answer, same_answer

__all__ = ["extract_answer", "extract_boxed_answer", "grade_answer_verl"]


def extract_answer(passage: str) -> str | None:
    r"""What stands in the last \boxed{...} of a text, None where there is none."""
    return boxed_answer(passage)


extract_boxed_answer = extract_answer


def grade_answer_verl(solution_str: str, ground_truth: str | float | None) -> bool:
    r"""Whether the last \boxed{...} of a solution is the right answer, which may stand in a \boxed{} itself."""
    given, right = boxed_answer(solution_str), str("" if ground_truth is None else ground_truth)
    return given is not None and same_answer(given, boxed_answer(right) or right)
