"""How likely a job runs out of memory, and the largest batch that does not."""

from collections.abc import Callable

from leadline.core.estimate import Interval
from leadline.core.fit import MemoryCheck
from leadline.uncertainty.distributions import HalfLogNormals, quantile

LARGEST = 2**20
"""No larger batch is asked about."""


def check(kind: str, memory: Interval, there_bytes: float | None, risk: float) -> MemoryCheck:
    """Return the check of a memory of ``there_bytes``, of which the job needs ``memory``.

    Raises:
        InvalidInput: the risk is not between 0 and 1.
    """
    needed = quantile(memory, 1 - risk)
    over = None if there_bytes is None else HalfLogNormals.of(memory).above(there_bytes)
    return MemoryCheck(kind, needed, there_bytes, over)


def largest_batch(needed_bytes: Callable[[int], float], there_bytes: float, batch: int) -> int:
    """Return the largest batch whose ``needed_bytes`` are there; 0 if that of one sample are not.

    Memory grows nearly in a straight line with the batch, so each batch is guessed by the line through the two nearest
    known ones, and bisected where the guess does not help. ``batch`` is where to begin.
    """
    known: dict[int, float] = {}

    def fits(size: int) -> bool:
        if size not in known:
            known[size] = needed_bytes(size)
        return known[size] <= there_bytes

    low, high = (batch, None) if fits(batch) else (0, batch)
    while high is None:
        more = min(max(_guess(known, there_bytes), 2 * low), LARGEST)
        if not fits(more):
            high = more
        elif more == LARGEST:
            return LARGEST
        else:
            low = more
    guessing = True
    while high is not None and high - low > 1:
        guess = min(max(_guess(known, there_bytes), low + 1), high - 1) if guessing else (low + high) // 2
        low, high = (guess, high) if fits(guess) else (low, guess)
        guessing = not guessing  # every second step halves what is left, whatever the guesses are
    return low


def _guess(known: dict[int, float], there_bytes: float) -> int:
    """Return the batch at which the line through the two known batches nearest to the limit meets it."""
    if len(known) < 2:
        return max(known) // 2 if min(known.values()) > there_bytes else 2 * max(known)
    (one, at_one), (other, at_other) = sorted(known.items(), key=lambda item: abs(item[1] - there_bytes))[:2]
    slope = (at_other - at_one) / (other - one)
    return int(one + (there_bytes - at_one) / slope) if slope > 0 else max(known) * 2
