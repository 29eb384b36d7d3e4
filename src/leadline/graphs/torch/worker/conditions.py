"""Conditions on tensors without data: their truth is told or assumed by the line that asks for it."""

import ast
import collections
import contextlib
import functools
import itertools
import os
import sys
from pathlib import Path
from typing import Any, Callable, Dict, Iterator, List, Optional, Set, Tuple

import torch

from leadline.graphs.torch.worker.expressions import parse_file
from leadline.graphs.torch.worker.libraries import GRAPHS_FOLDER, is_own_file

TORCH_FOLDER = str(Path(torch.__file__).parent) + os.sep
DISTRIBUTIONS = TORCH_FOLDER + "distributions" + os.sep
CHECK, LOOP, EXIT, BRANCH = "check", "loop", "exit", "branch"
MOST_PASSES = 64
"""Passes of such a loop between two steps, as for each time of a solver. Later ones cost minutes and tell no more."""
MOST_NUMBERS, CONVERGED = 100, 1e-12
"""How often a line gets the same number between two steps, and the number after that: an error that it waits for."""
_passes: "collections.Counter[Tuple[Any, Any, bool]]" = collections.Counter()
_numbers: "collections.Counter[Tuple[Any, int]]" = collections.Counter()
_checking: List[Any] = []
_begun: Set[Tuple[Any, Any]] = set()
"""Conditions of loops that have made a pass, by code and place, since the last step of an optimizer."""
_others: List[Iterator[float]] = []
"""Numbers to guess instead of the expected ones."""
_is_opposite = [False]
"""Whether the truth of conditions is the opposite of what is assumed elsewhere."""


def expected_truth() -> Optional[bool]:
    """Return the truth of a condition that the running line asks for; ``None`` if the line does not tell.

    What is asserted is true, and a condition on which an ``if`` raises an error is false. A ``while`` on such a
    condition makes one pass, and ``while True`` ends at its ``break`` in the second pass. A loop that trains goes on.
    Of an ``if`` with an ``else``, the longer branch runs.
    """
    kind, value, frame = _condition()
    if kind in ("", CHECK, BRANCH):
        return not value if _is_opposite[0] and kind != CHECK else value
    place = _place(frame.f_code, frame.f_lasti, frame.f_lineno)
    counted = (*place, torch.is_grad_enabled())  # a solver may run without gradients before it trains
    if place in _begun or _passes[counted] >= MOST_PASSES:
        _begun.discard(place)
        return not value
    _begun.add(place)
    _passes[counted] += 1
    return value


def expected_number() -> float:
    """Return the number that stands for an unknown one: a small one where a loop seems to wait for it."""
    if _others:
        return next(_others[0])
    frame = calling_frame()
    if frame is None:
        return 1.0
    place = frame.f_code, frame.f_lineno
    _numbers[place] += 1
    return 1.0 if _numbers[place] <= MOST_NUMBERS else CONVERGED


def asserted_number() -> Optional[float]:
    """Return the constant with which the running line asserts that a number is equal, or which it does not exceed."""
    frame = calling_frame()
    return None if frame is None else _asserted_numbers(frame.f_code.co_filename).get(frame.f_lineno)


@functools.cache
def _asserted_numbers(path: str) -> Dict[int, float]:
    tree = parse_file(path)
    checks = [test for test, kind, truth in _tests(tree) if kind == CHECK and truth] if tree is not None else []
    lines: Dict[int, float] = {}
    for test in checks:
        if not isinstance(test, ast.Compare) or len(test.ops) > 1:
            continue
        value: Any = None
        with contextlib.suppress(ValueError):  # it is no constant
            value = ast.literal_eval(test.comparators[0])
        if isinstance(test.ops[0], (ast.Eq, ast.LtE, ast.GtE)) and type(value) in (int, float):
            lines.update(dict.fromkeys(range(test.lineno, (test.end_lineno or test.lineno) + 1), value))
    return lines


def guess_otherwise(*, rising: bool) -> None:
    """Guess numbers that only rise from now on, or small ones that only fall, and the opposite truth of conditions."""
    _others[:] = [(1 + count / 1024 if rising else CONVERGED / (1 + count) for count in itertools.count())]
    _is_opposite[0] = not rising


def let_checks_hold(function: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a function of PyTorch which checks that no value equals a wrong one."""

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        _checking.append(function)
        try:
            return function(*args, **kwargs)
        finally:
            _checking.pop()

    return call


def tensors_are_equal() -> bool:
    """Return whether two tensors without data are equal: they are, but not to a wrong value."""
    return not _checking


def begin_step() -> None:
    """Let the loops around a step of an optimizer go on."""
    for seen in (_begun, _passes, _numbers):
        seen.clear()


def condition_note() -> Optional[str]:
    """Return a note on what was assumed: the branch of the running line, or the passes of a loop that it has ended."""
    kind, _, frame = _condition()
    place = f"{os.path.basename(frame.f_code.co_filename)}:{frame.f_lineno}" if kind else ""
    if kind == BRANCH and is_own_file(frame.f_code.co_filename):
        return f"the branch that runs at {place} depends on the data: the longer one was assumed"
    if kind not in (LOOP, EXIT) or _place(frame.f_code, frame.f_lasti, frame.f_lineno) in _begun:
        return None
    return f"the passes of the loop at {place} depend on the data: one was assumed; a real step may make more"


def calling_frame() -> Any:
    """Return the innermost frame outside of Leadline and PyTorch, or within the checks of its distributions."""
    frame: Any = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename.startswith((GRAPHS_FOLDER, TORCH_FOLDER)):
        if frame.f_code.co_filename.startswith(DISTRIBUTIONS):
            return frame
        frame = frame.f_back
    return frame


@functools.cache
def _place(code: Any, instruction: int, line: int) -> Tuple[Any, Any]:
    """Return where a condition is in the source: Python compiles that of a ``while`` loop twice."""
    positions = getattr(code, "co_positions", None)  # from Python 3.11 on
    return code, next(itertools.islice(positions(), instruction // 2, None)) if positions else line


def _condition() -> Tuple[str, Optional[bool], Any]:
    """Return the kind of the running line's condition, the truth of its parts in the first pass, and the frame."""
    frame = calling_frame()
    kind, value = _conditions(frame.f_code.co_filename).get(frame.f_lineno, ("", None)) if frame else ("", None)
    return kind, value, frame


@functools.cache
def _conditions(path: str) -> Dict[int, Tuple[str, Optional[bool]]]:
    tree = parse_file(path)
    lines: Dict[int, Tuple[str, Optional[bool]]] = {}
    for test, kind, value in _tests(tree) if tree is not None else ():
        signs = set(_signs(test))
        if len(signs) == 1:
            asked = range(test.lineno, (test.end_lineno or test.lineno) + 1)
            for line in asked:
                if kind != BRANCH or line not in lines:
                    lines[line] = kind, signs == {value}
    return lines


def _tests(tree: ast.AST) -> Iterator[Tuple[Any, str, bool]]:
    """Yield the conditions of a file that tell their truth, with their kind and the truth in the first pass."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Assert):
            yield node.test, CHECK, True
        elif isinstance(node, ast.If) and any(isinstance(child, ast.Raise) for child in node.body):
            yield node.test, CHECK, False
        elif isinstance(node, ast.If) and any(isinstance(child, ast.Raise) for child in node.orelse):
            yield node.test, CHECK, True
        elif isinstance(node, ast.If) and node.orelse:
            yield node.test, BRANCH, _length(node.body) >= max(map(_length, _alternatives(node)))
        elif isinstance(node, ast.While) and not isinstance(node.test, ast.Constant):
            yield node.test, LOOP, True
        elif isinstance(node, ast.While):
            for child in node.body:
                if isinstance(child, ast.If) and any(isinstance(each, ast.Break) for each in child.body):
                    yield child.test, EXIT, False


def _alternatives(node: Any) -> Iterator[Any]:
    """Yield the bodies of an ``if`` that run when its own condition is false."""
    while len(node.orelse) == 1 and isinstance(node.orelse[0], ast.If):
        node = node.orelse[0]
        yield node.body
    yield node.orelse


def _length(body: Any) -> int:
    return sum(1 for statement in body for _ in ast.walk(statement))


def _signs(test: Any, sign: bool = True) -> Iterator[bool]:
    """Yield for each part of a condition whether the condition is true with it, or with its opposite."""
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        yield from _signs(test.operand, not sign)
    elif isinstance(test, ast.BoolOp):
        for value in test.values:
            yield from _signs(value, sign)
    else:
        yield sign
