"""Conditions on tensors without data, whose truth the line that asks for it tells: checks hold, and loops end."""

import ast
import collections
import functools
import itertools
import os
import sys
from pathlib import Path
from typing import Any, Dict, Iterator, Optional, Set, Tuple

import torch

from leadline.graphs.torch.worker.expressions import parse_file
from leadline.graphs.torch.worker.libraries import GRAPHS_FOLDER

TORCH_FOLDER = str(Path(torch.__file__).parent) + os.sep
CHECK, LOOP, EXIT = "check", "loop", "exit"
MOST_PASSES = 64
"""Passes of such a loop between two steps, as for each time of a solver. Later ones cost minutes and tell no more."""
_passes: "collections.Counter[Tuple[Any, Any, bool]]" = collections.Counter()
_begun: Set[Tuple[Any, Any]] = set()
"""Conditions of loops that have made a pass, by code and place, since the last step of an optimizer."""


def expected_truth() -> Optional[bool]:
    """Return the truth of a condition that the running line asks for; ``None`` if the line does not tell.

    What is asserted is true, and a condition on which an ``if`` raises an error is false. A ``while`` on such a
    condition makes one pass, and ``while True`` ends at its ``break`` in the second pass. A loop that trains goes on.
    """
    kind, value, frame = _condition()
    if kind in ("", CHECK):
        return value
    place = _place(frame.f_code, frame.f_lasti, frame.f_lineno)
    counted = (*place, torch.is_grad_enabled())  # a solver may run without gradients before it trains
    if place in _begun or _passes[counted] >= MOST_PASSES:
        _begun.discard(place)
        return not value
    _begun.add(place)
    _passes[counted] += 1
    return value


def begin_step() -> None:
    """Let the loops around a step of an optimizer go on."""
    _begun.clear()
    _passes.clear()


def loop_note() -> Optional[str]:
    """Return a note on the passes that were assumed of the loop that the running line has just ended."""
    kind, _, frame = _condition()
    if kind not in (LOOP, EXIT) or _place(frame.f_code, frame.f_lasti, frame.f_lineno) in _begun:
        return None
    place = f"{os.path.basename(frame.f_code.co_filename)}:{frame.f_lineno}"
    return f"the passes of the loop at {place} depend on the data: one was assumed; a real step may make more"


def calling_frame() -> Any:
    """Return the innermost frame outside of Leadline and PyTorch."""
    frame: Any = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename.startswith((GRAPHS_FOLDER, TORCH_FOLDER)):
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
            lines.update((line, (kind, signs == {value})) for line in asked)
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
        elif isinstance(node, ast.While) and not isinstance(node.test, ast.Constant):
            yield node.test, LOOP, True
        elif isinstance(node, ast.While):
            for child in node.body:
                if isinstance(child, ast.If) and any(isinstance(each, ast.Break) for each in child.body):
                    yield child.test, EXIT, False


def _signs(test: Any, sign: bool = True) -> Iterator[bool]:
    """Yield for each part of a condition whether the condition is true with it, or with its opposite."""
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        yield from _signs(test.operand, not sign)
    elif isinstance(test, ast.BoolOp):
        for value in test.values:
            yield from _signs(value, sign)
    else:
        yield sign
