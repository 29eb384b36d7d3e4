"""Predict the length of a loop from its end condition: ``while step < steps``, ``if step >= steps: break``."""

from __future__ import annotations

import ast
import math
import operator
import sys

TYPE_CHECKING = False  # typing itself takes a tenth of a short script's start
if TYPE_CHECKING:
    from typing import Any, Dict, List, Optional, Tuple

OPERATORS: Dict[Any, Any] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
}  # fmt: skip
MOST_COUNT = 10**15
"""A larger limit, such as infinity, stands for none."""
BELOW, ABOVE = (ast.Lt, ast.LtE, ast.NotEq), (ast.Gt, ast.GtE, ast.Eq)


def find_bound(loop: Any) -> Optional[Tuple[Any, Any, bool]]:
    """Return (counter, bound, True if the bound itself is reached) of a loop; None if it has none.

    A counter is the loop variable, or a variable that the loop only increases.
    """
    tests: List[Tuple[Any, Any]] = [(loop.test, BELOW)] if isinstance(loop, ast.While) else []
    breaks = [node for node in loop.body if isinstance(node, ast.If)]
    tests += [(node.test, ABOVE) for node in breaks if any(isinstance(child, ast.Break) for child in node.body)]
    condition: Any
    for test, signs in tests:
        for condition in test.values if isinstance(test, ast.BoolOp) else [test]:
            compares = (
                isinstance(condition, ast.Compare) and len(condition.ops) == 1 and isinstance(condition.ops[0], signs)
            )
            if compares and _counts(loop, ast.unparse(condition.left)):
                return condition.left, condition.comparators[0], isinstance(condition.ops[0], (ast.Gt, ast.LtE))
    return None


def _counts(loop: Any, name: str) -> bool:
    targets = ast.walk(loop.target) if isinstance(loop, ast.For) else ()
    if any(isinstance(target, ast.Name) and target.id == name for target in targets):
        return True
    up = False
    for node in ast.walk(loop):
        if isinstance(node, ast.AugAssign) and ast.unparse(node.target) == name:
            if not isinstance(node.op, ast.Add):
                return False
            up = True
        if isinstance(node, ast.Assign) and name in [ast.unparse(target) for target in node.targets]:
            return False
    return up


class LoopBound:
    """Counter and bound of one running loop, read from time to time in the user's frame."""

    def __init__(self, bound: Tuple[Any, Any, bool], kind: str) -> None:
        self.counter, self.limit, self.reached = bound
        self.late = kind == "for"
        self.first: Optional[Tuple[int, float]] = None
        self.latest: Optional[Tuple[int, float, float]] = None
        self.due = 1

    def look(self, count: int, depth: int) -> None:
        """Read both after ``count`` iterations; the loop's frame is ``depth`` above the caller."""
        if count < self.due:
            return
        # Doubling the distance keeps the cost negligible in long loops.
        self.due = 2 * count
        try:
            frame = sys._getframe(depth)
            counter, limit = evaluate(self.counter, frame), evaluate(self.limit, frame)
        except (ValueError, ZeroDivisionError, OverflowError, TypeError):
            return
        if self.first is None:
            self.first = (count, counter)
        self.latest = (count, counter, limit)

    def total(self) -> Optional[int]:
        """Return the iterations of the whole loop, extrapolated from the counter's growth."""
        if self.first is None or self.latest is None or self.latest[0] == self.first[0]:
            return None
        count, counter, limit = self.latest
        rate = (counter - self.first[1]) / (count - self.first[0])
        if not (0 < rate < math.inf and counter <= limit <= MOST_COUNT):
            return None
        return max(count, math.ceil(count + (limit - counter + (1 if self.reached else 0)) / rate - self.late))


def evaluate(node: Any, frame: Any) -> float:
    """Return the number of an expression without calling the user's code.

    Raises:
        ValueError: it is not a number, or cannot be read safely.
    """
    value = _value(node, frame)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise ValueError("no number")  # noqa: TRY004 - one error for all unreadable expressions
    return value


def _value(node: Any, frame: Any) -> Any:
    if isinstance(node, ast.Constant):
        return node.value
    if isinstance(node, ast.Name):
        for names in (frame.f_locals, frame.f_globals):
            if node.id in names:
                return names[node.id]
    # Only plain instance fields are read, because a property would run the user's code.
    if isinstance(node, ast.Attribute):
        fields: Dict[str, Any] = getattr(_value(node.value, frame), "__dict__", {})
        if node.attr in fields:
            return fields[node.attr]
    if isinstance(node, ast.BinOp) and type(node.op) in OPERATORS:
        return OPERATORS[type(node.op)](evaluate(node.left, frame), evaluate(node.right, frame))
    if isinstance(node, ast.Call) and getattr(node.func, "id", "") in ("len", "int", "float"):
        return _called(node, frame)
    raise ValueError("not readable")


def _called(node: Any, frame: Any) -> float:
    arguments: List[Any] = [_value(argument, frame) for argument in node.args]
    if node.func.id != "len":
        return float(arguments[0])
    if len(arguments) == 1 and isinstance(arguments[0], (list, tuple, dict, str, range, set)):
        return len(arguments[0])
    raise ValueError("not readable")
