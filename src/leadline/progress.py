"""Report a job's progress to whoever measures it: ``report(epoch=3, step=120, loss=0.41)``; without one, nothing.

This file needs only the standard library and Python 3.9, and may be copied beside a script as it is.
"""

import os
import time

__all__ = ["report"]

VARIABLE = "LEADLINE_PROGRESS"
"""The environment variable that names the file to which lines are appended."""


def report(*, step: "int | None" = None, epoch: "int | None" = None, **more: object) -> None:
    """Say that a step or an epoch is done; ``more`` may hold ``total_steps``, ``total_epochs``, ``phase``, metrics.

    Outside a measured job, and where the file cannot be written, it does nothing. A value of several words is joined
    by underscores.
    """
    path = os.environ.get(VARIABLE)
    if not path:
        return
    said = {"t": f"{time.time():.6f}", "epoch": epoch, "step": step, **more}
    words = [f"{name}={'_'.join(str(value).split())}" for name, value in said.items() if value is not None]
    try:
        with open(path, "a", encoding="utf-8", errors="replace") as stream:  # noqa: PTH123 - fewer imports in a job
            stream.write(" ".join(words) + "\n")
    except (OSError, ValueError):
        return
