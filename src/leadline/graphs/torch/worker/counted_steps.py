"""Steps of a ``while`` loop whose counter a loop within it increments, as by one for each batch or action."""

import math
from typing import Optional, Tuple

from leadline.graphs.torch.worker.loop_observations import LoopObservations
from leadline.graphs.torch.worker.loop_roles import same_loop
from leadline.graphs.torch.worker.loops import EnclosingLoop


def counted_steps(observed: LoopObservations, limit: EnclosingLoop) -> Tuple[Optional[int], str]:
    """Return the steps until the counter of ``limit`` is at its bound, and a remark if they are not its counts.

    The watched steps tell at which counts they were made. Several at the same count are those of the loops within the
    one that counts, as the updates on what an agent collected.
    """
    around = [step.loops for step in observed.steps]
    loops = [next((loop for loop in loops if same_loop([loop], [limit])), None) for loops in around]
    places = [loop.position for loop in loops if loop is not None and loop.position is not None]
    times = limit.times or 0
    if len(places) < max(2, len(around)):
        return times, ""
    distinct = sorted(set(places))
    period = distinct[1] - distinct[0] if len(distinct) > 1 else limit.counted.period or 1
    if len(distinct) == len(places):
        at_once = 1
    else:
        lines = [loop.line for loop in around[-1]]
        holder = limit.counted.holder
        rounds = around[-1][lines.index(holder) + 1 :] if holder in lines else []
        unread = next((loop for loop in rounds if loop.times is None), None)
        if unread is not None:
            return None, f", as the length of the loop over {unread.place} is"
        at_once = math.prod(loop.times or 1 for loop in rounds) if rounds else places.count(distinct[0])
    steps = max(1, math.ceil((times - distinct[0]) / period)) * at_once
    if steps == times:
        return times, ""
    return steps, f", assuming {at_once:,} at every {period:,} of its {times:,} counts from {distinct[0] + 1:,}"
