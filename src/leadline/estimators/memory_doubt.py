"""How far measured peaks of GPU memory were from what was told of them, by what the model works on.

What 5 % of the measured peaks are above, and below, in terms of what was told (conformal quantiles, Vovk et al. 2005):
of 505 trainings of segmenters and detectors (``leadline bench detectors``: the most that tensors held, against the most
that a step holds; a training also meets larger images and more objects than that step), and of 47 fine-tunes of
language models by adapters beside frozen weights in 16 bits (``leadline bench fine-tunes``; those of all parameters and
of quantized weights were run by software that is not modelled: its own storage formats). The benches tell how often a
bound is exceeded that was learned without the family, or the model. Nothing was measured of the allocator's reserve: it
is doubted as far as what tensors hold. The driver's context has ends of its own (``driver_context.py``), and so have
programs for XLA that were not compiled: what its compiler planned for ten of them, on three GPUs, was 0.756 to 1.203
of what is alive as Leadline groups their kernels. So few have no quantile: the ends are all of them.
"""

from leadline.core.estimate import Interval
from leadline.core.graph import OpGraph
from leadline.core.hardware import Device
from leadline.estimators.device_memory import STANDING, PeakMemory
from leadline.estimators.driver_context import context_bytes
from leadline.estimators.learned.selection import Domain

FACTORS = {Domain.VISION: (0.967, 1.093), Domain.LANGUAGE: (0.892, 1.090)}
WIDEST = (min(low for low, _ in FACTORS.values()), max(high for _, high in FACTORS.values()))
"""For models of another kind, of which nothing was measured."""
LOWERED = (0.75, 1.21)
"""For a program that XLA has yet to compile, whatever it works on."""
TRIED = {
    Domain.VISION: "505 measured trainings of segmenters and detectors",
    Domain.LANGUAGE: "47 measured fine-tunes of language models",
}


def gpu_memory(peak: PeakMemory, graph: OpGraph, domain: Domain, device: Device) -> Interval:
    """Return what the device holds in bytes: what the allocator reserves at the ``peak``, and the driver's context.

    The ends are exceeded and undercut by 5 % each; the low one is of what tensors hold alone, and no less than what
    stands through the whole step (weights, optimizer state).
    """
    context = context_bytes(device)
    low, high = LOWERED if _is_lowered(graph) else FACTORS.get(domain, WIDEST)
    standing = sum(size for category, size in peak.by_category.items() if category in STANDING)
    return Interval(
        peak.reserved_bytes + context.point,
        max(peak.allocated_bytes * low, standing) + context.low,
        peak.reserved_bytes * high + context.high,
    )


def sentence(graph: OpGraph, domain: Domain) -> str:
    """Return where the ends of the interval come from."""
    if _is_lowered(graph):
        low, high = LOWERED
        return f"GPU memory ranges as plans of XLA did: {low:.2f} to {high:.2f} of what is alive as foretold"
    low, high = FACTORS.get(domain, WIDEST)
    if domain not in FACTORS:
        return "GPU memory of such models was not measured: it ranges as the least certain of those that were"
    said = f"GPU memory ranges as {TRIED[domain]} did: {low:.2f} to {high:.2f} of what was foretold"
    return said if graph.is_training else f"{said}; no inference was measured"


def _is_lowered(graph: OpGraph) -> bool:
    """Tell whether a graph is of a program that XLA has yet to compile."""
    return graph.source == "stablehlo" and graph.planned_bytes is None
