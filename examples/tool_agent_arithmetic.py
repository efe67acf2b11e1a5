"""A calculator as a tool, and the reward of who uses it well: for examples/tool_agent_arithmetic.yaml."""

from __future__ import annotations

import ast
import operator
import re
from typing import Any

from stream_rl.errors import ActionError
from stream_rl.slime.types import Sample

OPERATIONS = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul}
LONGEST = 100


def calculate(expression: str) -> int:
    """Calculates with whole numbers.

    Args:
        expression: sums, differences and products, for instance 12 * 7 - 3
    """
    try:
        if len(expression) > LONGEST:
            raise ValueError("it is too long")
        return _value(ast.parse(expression.strip(), mode="eval").body)
    except (SyntaxError, ValueError, RecursionError) as error:
        raise ActionError(f"this cannot be calculated: {error}") from error


def _value(node: ast.expr) -> int:
    if isinstance(node, ast.Constant) and type(node.value) is int:
        return node.value
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return -_value(node.operand)
    if isinstance(node, ast.BinOp) and type(node.op) in OPERATIONS:
        return OPERATIONS[type(node.op)](_value(node.left), _value(node.right))
    raise ValueError(f"there is no {type(node).__name__} here")


async def reward(args: Any, sample: Sample) -> float:
    """1 when the last whole number of the last answer is the label, else 0.1 for an episode without a mistake."""
    numbers = re.findall(r"-?\d+", sample.turns[-1].action)
    if numbers and int(numbers[-1]) == int(sample.label):
        return 1.0
    return 0.0 if any(turn.parse_failures for turn in sample.turns) else 0.1
