"""Loading times of batches, as fields of ``LoadingTime``."""

from statistics import median
from typing import Any, Dict, List, NamedTuple

from leadline.graphs.torch.worker.session import ThreadTimes, read_times


class MeasuredLoad(NamedTuple):
    """The clocks while a batch was loaded, and the watched ops on its data."""

    times: ThreadTimes
    ops: int
    is_watched: bool = True


def loading_time(loads: List[MeasuredLoad], watching_s: float, began: ThreadTimes) -> Dict[str, Any]:
    """Return the fields of ``LoadingTime``, without the cost of watching, which is ``watching_s`` an op.

    The first batch is left out where there are others: it starts the iterator and opens files. Watching slows the small
    ops of a data set several times.
    """
    loads = [load for load in loads if not load.is_watched] or loads[1:] or loads
    whole = read_times().since(began)
    runnable_s = whole.cpu_s + (whole.queued_s or 0.0)
    return {
        "batch_s": max(median(load.times.needed_s - load.ops * watching_s for load in loads), 0.0),
        "cpu_s": max(median(load.times.cpu_s - load.ops * watching_s for load in loads), 0.0),
        "batches": len(loads),
        # Reading the clocks reads some 200 bytes, too.
        "read_bytes": int(median(load.times.read_bytes for load in loads)) // 1024 * 1024,
        "queued_share": None if whole.queued_s is None else whole.queued_s / max(runnable_s, 1e-9),
    }


def loads_per_step(loaded: List[int]) -> float:
    """Return the batches of a step, from those that were ``loaded`` at the end of each step.

    Loaders that fetch ahead have loaded more at the first one. A step of the rarest optimizer may need several.
    """
    between = loaded[-1] - loaded[0]
    return between / (len(loaded) - 1) if between else loaded[-1] / len(loaded)
