"""What a loop of the script does in every so many passes."""

import ast
import contextlib
from typing import List

from leadline.graphs.torch.worker.expressions import UnreadableExpression, evaluate
from leadline.graphs.torch.worker.libraries import user_frames
from leadline.graphs.torch.worker.loop_bounds import holds_line
from leadline.graphs.torch.worker.loops import loops_of


def period_around(script_folder: str) -> int:
    """Return N of a condition ``... % N`` of the user around the current call and within a loop, zero without one."""
    for frame in user_frames(script_folder):
        for loop in reversed(loops_of(frame)):
            for node in ast.walk(loop):
                if isinstance(node, ast.If) and holds_line(node.body, frame.f_lineno):
                    parts = [part for part in ast.walk(node.test) if isinstance(part, ast.BinOp)]
                    for part in (part for part in parts if isinstance(part.op, ast.Mod)):
                        with contextlib.suppress(UnreadableExpression, TypeError):
                            return int(evaluate(part.right, frame))
    return 0


def read_periods(script_folder: str) -> List[int]:
    """Return each N of a ``step % N`` in the innermost loop of the user around the current call, in its order."""
    periods: List[int] = []
    for frame in user_frames(script_folder):
        loops = loops_of(frame)
        for node in ast.walk(loops[-1]) if loops else ():
            if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mod):
                with contextlib.suppress(UnreadableExpression):
                    period = evaluate(node.right, frame)
                    if isinstance(period, int) and period > 1:
                        periods.append(period)
        if loops:
            break
    return periods
