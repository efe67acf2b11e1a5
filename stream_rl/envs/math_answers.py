r"""Whether a short mathematical answer equals the reference: numbers, fractions, roots, pi, degrees, in plain or LaTeX.

    value("3 \sqrt { 5 } cm") == value("3*sqrt(5)") == 6.7082...

Names of units, a leading `x =`, dollar signs and digits' commas are no part of a number. What has no value is compared
as text without spaces.
"""

from __future__ import annotations

import math
import re

__all__ = ["boxed_answer", "final_answer", "same_answer", "value"]

CLOSE = 1e-3
"""Largest difference, as a share of the reference, at which values are the same: what rounding to 4 digits changes."""
LONGEST = 100
"""Characters of an expression; longer ones are no answers."""
_BOXED = "\\boxed{"
_NUMBER = re.compile(r"\d+(?:\.\d+)?|\.\d+")
_TOKEN = re.compile(r"\d+(?:\.\d+)?|\.\d+|\\?(?:d?frac|sqrt|pi|times|cdot|div)|π|√|[-+*/^(){}]")
_DECORATION = re.compile(
    r"\\(?:text|mathrm|left|right|degree|[,;!])|\$|\^\{?\\circ\}?|\\circ|°|\bdegrees?\b"
    r"|\b(?:(?:square )?units?|mm|cm|m|km|in|ft)\b(?: ?\^\{?[23]\}?)?"
)
_NAMED = re.compile(r"^[a-zA-Z∠\\ ]*=")


def same_answer(given: str, reference: str) -> bool:
    """Whether they are the same number, as exactly as the reference is written, or the same text."""
    one, other = value(given), value(reference)
    if one is None or other is None:
        return _bare(given) == _bare(reference) != ""
    return abs(one - other) <= max(CLOSE * abs(other), _half_of_last_place(reference))


def boxed_answer(text: str) -> str | None:
    r"""What stands in the last \boxed{...}; None where there is none, or it is never closed."""
    start = text.rfind(_BOXED)
    return None if start < 0 else _up_to_closing_brace(text[start + len(_BOXED) :])


def final_answer(text: str) -> str | None:
    r"""What stands in the last \boxed{...}, or else the last number; None where there is neither."""
    if _BOXED in text:
        return boxed_answer(text)
    numbers = re.findall(r"-?(?:\d[\d,]*(?:\.\d+)?|\.\d+)", text)
    return numbers[-1] if numbers else None


def value(text: str) -> float | None:
    """The number that an expression stands for; None if it is none, or has no finite value."""
    text = re.sub(r"(?<=\d),(?=\d{3}\b)", "", text.replace("²", "^2").replace("³", "^3"))
    expression = _NAMED.sub("", _DECORATION.sub(" ", text)).strip(" .")
    tokens = _TOKEN.findall(expression)
    if not tokens or len(expression) > LONGEST or _TOKEN.sub("", expression).strip():
        return None
    reader = _Reader([token.lstrip("\\") for token in tokens])
    try:
        result = reader.total()
    except (IndexError, ValueError, ZeroDivisionError, OverflowError):
        return None
    return result if not reader.left and math.isfinite(result) else None


class _Reader:
    """Recursive descent over tokens; what stands side by side is multiplied. Raises IndexError or ValueError."""

    def __init__(self, tokens: list[str]) -> None:
        self.left = tokens

    def total(self) -> float:
        """A sum."""
        result = self._product()
        while self._next() in ("+", "-"):
            result += self._product() if self.left.pop(0) == "+" else -self._product()
        return result

    def _product(self) -> float:
        result = self._power()
        while (token := self._next()) not in ("", "+", "-", ")", "}"):
            if token in ("/", "div"):
                self.left.pop(0)
                result /= self._power()
                continue
            if token in ("*", "times", "cdot"):
                self.left.pop(0)
            elif token[0].isdigit():
                raise ValueError("a number follows what it is no part of")
            result *= self._power()
        return result

    def _power(self) -> float:
        if self._next() == "-":
            self.left.pop(0)
            return -self._power()
        base = self._atom()
        if self._next() != "^":
            return base
        self.left.pop(0)
        return float(math.pow(base, self._power()))

    def _atom(self) -> float:
        token = self.left.pop(0)
        if token in ("(", "{"):
            inside = self.total()
            if self.left.pop(0) != {"(": ")", "{": "}"}[token]:
                raise ValueError("a bracket closes another")
            return inside
        if token in ("frac", "dfrac"):
            return self._atom() / self._atom()
        if token in ("sqrt", "√"):
            return math.sqrt(self._atom())
        if token in ("pi", "π"):
            return math.pi
        return float(token)

    def _next(self) -> str:
        return self.left[0] if self.left else ""


def _half_of_last_place(reference: str) -> float:
    """A reference with a decimal point was rounded there; a whole number or an expression is exact."""
    number = _DECORATION.sub(" ", reference).strip()
    if not _NUMBER.fullmatch(number) or "." not in number:
        return 0.0
    return 0.5 * 10.0 ** -len(number.partition(".")[2]) + 1e-9


def _bare(text: str) -> str:
    return re.sub(r"[\s{}.]", "", _DECORATION.sub(" ", text)).lower()


def _up_to_closing_brace(text: str) -> str | None:
    depth = 1
    for place, letter in enumerate(text):
        depth += {"{": 1, "}": -1}.get(letter, 0)
        if not depth:
            return text[:place].strip()
    return None
