"""What a loop of the script does in every so many passes."""

import ast
from typing import List

from leadline.graphs.torch.worker.libraries import user_frames
from leadline.graphs.torch.worker.loop_bounds import divisors, holds_line
from leadline.graphs.torch.worker.loops import loops_of


def period_around(script_folder: str) -> int:
    """Return N of a condition ``... % N`` of the user around the current call and within a loop, zero without one."""
    for frame in user_frames(script_folder):
        conditions = [node for loop in reversed(loops_of(frame)) for node in ast.walk(loop) if isinstance(node, ast.If)]
        tests = [node.test for node in conditions if holds_line(node.body, frame.f_lineno)]
        for period in divisors(tests, frame):
            return period
    return 0


def read_periods(script_folder: str) -> List[int]:
    """Return each N of a ``step % N`` in the innermost loop of the user around the current call, in its order."""
    for frame in user_frames(script_folder):
        loops = loops_of(frame)
        if loops:
            return list(divisors(loops[-1:], frame))
    return []
