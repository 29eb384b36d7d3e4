"""Report a job's progress to Leadline: ``report(epoch=3, step=120, loss=0.41)``; no effect outside a measured job.

This file needs only the standard library and Python 3.9, and may be copied next to a script.
"""

import os
import time

__all__ = ["report"]

VARIABLE = "LEADLINE_PROGRESS"
"""Environment variable with the file to append to."""


def report(*, step: "int | None" = None, epoch: "int | None" = None, **more: object) -> None:
    """Report that a step or an epoch is done.

    Outside a measured job, or if the file is not writable, it does nothing. Spaces in a value become underscores.
    ``more`` is ``total_steps``, ``total_epochs``, ``phase``, or metrics.
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
