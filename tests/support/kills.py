"""A process that is killed at random moments, for tests of what it leaves behind."""

import random
import signal
import subprocess
from collections.abc import Sequence

MAX_KILLS = 60
LONGER_S = 0.125
"""So much longer each next process may run: a busy machine may need long to start one at all."""


def kill_at_random(words: Sequence[str], *, seed: int, within_s: tuple[float, float]) -> int:
    """Start a command again and again, killed at a moment drawn from ``within_s``, until one ends well by itself.

    Returns:
        How many were killed.

    Raises:
        AssertionError: one failed by itself, none was killed, or none ever ended.
    """
    chance = random.Random(seed)  # noqa: S311 - not secret
    for kills in range(MAX_KILLS):
        process = subprocess.Popen(words)
        try:
            process.wait(chance.uniform(*within_s) + kills * LONGER_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        if process.returncode == 0 and kills:
            return kills
        if process.returncode != -signal.SIGKILL:
            raise AssertionError(f"{words[0]} ended with exit code {process.returncode} after {kills} kills")
    raise AssertionError(f"{words[0]} did not end within {MAX_KILLS} starts")
