"""Kill a process at random times, to test what it leaves behind."""

import random
import signal
import subprocess
from collections.abc import Sequence

MAX_KILLS = 60
LONGER_S = 0.125
"""Extra time of each next process: a busy machine may need long to start one."""


def kill_at_random(command: Sequence[str], *, seed: int, within_s: tuple[float, float]) -> int:
    """Start a command again and again, killing it after a random time, until one ends by itself.

    Returns:
        the number of kills.

    Raises:
        AssertionError: one failed by itself, none was killed, or none ever ended.
    """
    generator = random.Random(seed)  # noqa: S311 - not secret
    for kills in range(MAX_KILLS):
        process = subprocess.Popen(command)
        try:
            process.wait(generator.uniform(*within_s) + kills * LONGER_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        if process.returncode == 0 and kills:
            return kills
        if process.returncode != -signal.SIGKILL:
            raise AssertionError(f"{command[0]} ended with exit code {process.returncode} after {kills} kills")
    raise AssertionError(f"{command[0]} did not end within {MAX_KILLS} starts")
