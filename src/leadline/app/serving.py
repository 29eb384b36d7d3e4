"""How many sequences a device answers at once where an engine fills it with the blocks of a paged KV cache."""

from leadline.core.estimate import Estimate
from leadline.core.fit import MemoryCheck, Serving
from leadline.core.graph import StorageCategory, TracedJob
from leadline.core.workload import Workload
from leadline.estimators.parallel import cache_share
from leadline.graphs.hf_config.caching import BLOCK

UTILIZATION = 0.9
"""Share of the device that vLLM takes (``gpu_memory_utilization``; 0.92 in the newest releases)."""


def serving(workload: Workload, job: TracedJob, estimate: Estimate, check: MemoryCheck) -> Serving | None:
    """Return what fits beside weights, libraries and the passes of the batch that was asked about.

    As vLLM does: what a profiled pass leaves of its share becomes blocks. ``None`` where the cache is not paged or the
    device's memory is not known.
    """
    if not workload.paged or job.generation is None or check.there_bytes is None:
        return None
    cached = estimate.basis.memory_breakdown_bytes.get(StorageCategory.KV_CACHE.value, 0.0)
    room = max(UTILIZATION * check.there_bytes - (check.needed_bytes - cached), 0.0)
    batch = workload.batch or job.loop.batch or 1
    each = cache_share(job.generation.cache_bytes, workload, job.step) / batch
    tokens = job.generation.prompt + job.generation.generated
    return Serving(UTILIZATION, BLOCK, room, tokens, int(room // each))
