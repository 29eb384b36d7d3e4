"""The 90 % interval of GPU memory: allocator, driver context and the errors on measured peaks.

**Driver context.** A context holds local memory for the stack of every thread that can be resident at once. That is 1
KiB each by default (NVIDIA's developer forum, thread 289339; ``cudaLimitStackSize``): 216 MiB on an A100
(arcs-skku/EMDC_llvm, issue 13). Bare contexts take twice that on every GPU. Published MiB, with the ratio to 2 KiB a
thread:

    H100                       534   1.01   meta-pytorch/torchcomms, pull request 777
    RTX PRO 6000 Blackwell     555   0.98   ggml-org/llama.cpp, pull request 23604
    RTX 6000 Ada               426   1.00   unslothai/unsloth-zoo, pull request 1053
    RTX 4060 Ti                107   1.05   ggml-org/llama.cpp, pull request 23604
    RTX 3090                   256   1.04   invoke-ai/InvokeAI, issue 9413
    Titan V                    319   1.00   pytorch/pytorch, issue 28394 (by PyCuda)

Used kernels come on top: since release 1.13 PyTorch has CUDA load them lazily. A run of vLLM on an H100 took 0.16 GiB
more than its context (vllm-project/vllm, pull request 12126). All modules of PyTorch together are 362 MiB
(pytorch/pytorch, pull request 86509). Older releases and libraries load all of them at once: 688 MiB beyond the context
of the Titan V (pytorch/pytorch, issue 28394), which is the high end of the interval.

**Bounds.** They are conformal 5 % quantiles (Vovk et al. 2005) of measured over predicted peaks. The data are 505
trainings of segmenters and detectors (``leadline bench detectors``), and 178 of language models (``leadline bench
fine-tunes``): 80 of Qwen, 51 with most methods of peft, and 47 that Leadline measured on an H200. The widest quantiles
are 0.861 (Qwen) and 1.168 (H200). The second widest (0.929 and 1.126) are 1.08 and 1.04 times too narrow for them. A
new source may differ as much, so the bounds of language models are wider than the widest by these factors. XLA programs
that are not compiled use the range of ten compiler plans on three GPUs: 0.756 to 1.203 of the live bytes.
"""

import math

from leadline.core.estimate import Interval
from leadline.core.graph import CALCULATED, OpGraph
from leadline.core.hardware import Device, DeviceKind
from leadline.core.units import GIB, KIB, MIB, format_bytes
from leadline.core.workload import Phase, Workload
from leadline.estimators.memory.device import PERSISTENT_CATEGORIES, PeakMemory
from leadline.estimators.step_time.selection import Domain

THREAD_BYTES = 2 * KIB
BARE_LOW, BARE_HIGH = 0.98, 1.05  # how far bare contexts were from it
# Bytes of the kernels that a process has used: of one that was measured, of none, and of all of a release that loads
# them at once.
KERNEL_BYTES = Interval(0.16 * GIB, 0.0, 688.0 * MIB)
# For GPUs of other vendors, and those without a thread count in the catalog; an assumption.
UNKNOWN_CONTEXT = Interval(500.0 * MIB, 250.0 * MIB, 800.0 * MIB)


def context_bytes(device: Device) -> Interval:
    """Return the memory of the driver context and its loaded kernels; zero without a driver."""
    if device.kind is not DeviceKind.GPU:
        return Interval(0.0, 0.0, 0.0)
    if not _knows_threads(device):
        return UNKNOWN_CONTEXT
    bare = float(THREAD_BYTES * (device.compute_units or 0) * (device.threads_per_unit or 0))
    return Interval(bare, BARE_LOW * bare, BARE_HIGH * bare).joined(KERNEL_BYTES)


def _knows_threads(device: Device) -> bool:
    return bool(device.vendor.lower() == "nvidia" and device.compute_units and device.threads_per_unit)


def describe_context(device: Device) -> tuple[str, ...]:
    """Return a sentence about an assumed driver context; empty if it follows from the device's figures."""
    if device.kind is not DeviceKind.GPU or _knows_threads(device):
        return ()
    size, low, high = map(format_bytes, (UNKNOWN_CONTEXT.point, UNKNOWN_CONTEXT.low, UNKNOWN_CONTEXT.high))
    return (f"driver context of {device.name}: {size} assumed ({low} to {high}), as no context like it was measured",)


DOMAIN_FACTORS = {Domain.VISION: (0.967, 1.093), Domain.LANGUAGE: (0.798, 1.212)}
# For models of another kind, of which nothing was measured.
WIDEST_FACTORS = (min(low for low, _ in DOMAIN_FACTORS.values()), max(high for _, high in DOMAIN_FACTORS.values()))
# For a program that XLA has yet to compile, whatever it works on.
UNCOMPILED_FACTORS = (0.75, 1.21)
# Peaks of the simulated device over those of steps that the CPU calculated, the least (there without autocast) and the
# most of 14 scripts traced both ways.
CALCULATED_FACTORS = (0.63, 1.33)
TRIED = {
    Domain.VISION: "505 measured training runs of segmenters and detectors",
    Domain.LANGUAGE: "181 measured LLM training runs, widened for a new source",
}


def predict_gpu_memory(peak: PeakMemory, graph: OpGraph, domain: Domain, device: Device) -> Interval:
    """Return the device memory in bytes: allocator reserve at the ``peak`` plus driver context."""
    # Each bound is crossed with probability 5 %. The low bound counts tensors only, and at least weights and optimizer
    # state.
    context = context_bytes(device)
    low, high = _factors(graph, domain)
    standing = sum(size for category, size in peak.by_category.items() if category in PERSISTENT_CATEGORIES)
    tensors = Interval(peak.reserved_bytes, max(peak.allocated_bytes * low, standing), peak.reserved_bytes * high)
    return tensors.joined(context)


MEASURED_TOKENS = 8192
PER_DOUBLING = 0.05
"""Further width of each bound per doubling of the longest measured sequence: bounds of runs up to 2,048 tokens were 3 %
and 10 % too narrow on those of 4,096 and 8,192."""
UNMEASURED_METHODS = {
    "qalora", "kasa", "monteclora", "poly", "supertuning", "hra", "osf", "cpt", "multitask-prompt-tuning", "cartridge",
}  # fmt: skip
ANOTHER_METHOD = 0.07
"""Further width for these: the bound of peft's other methods over the error of its LoRA."""


def widen_unmeasured(memory: Interval, workload: Workload) -> tuple[Interval, str]:
    """Widen the memory of a workload beyond the measured fine-tunes, with a reason; empty within them."""
    tokens = max(workload.sequence or 0, workload.longest or 0)
    reasons, width = [], 0.0
    if workload.phase is Phase.TRAINING and tokens > MEASURED_TOKENS:
        width += PER_DOUBLING * math.log2(tokens / MEASURED_TOKENS)
        reasons.append(f"{tokens:,} tokens, but measured fine-tunes have up to {MEASURED_TOKENS:,}")
    if workload.adapters is not None and workload.adapters.method in UNMEASURED_METHODS:
        width += ANOTHER_METHOD
        reasons.append(f"no run with {workload.adapters.method} was measured")
    if not reasons:
        return memory, ""
    wider = Interval(memory.point, memory.low / (1 + width), memory.high * (1 + width), level=memory.level)
    return wider, f"extrapolating: {'; '.join(reasons)}; wider interval of GPU memory"


def describe_gpu_memory(graph: OpGraph, domain: Domain) -> str:
    """Return where the ends of the interval come from."""
    low, high = _factors(graph, domain)
    if _is_lowered(graph):
        return f"GPU memory interval: ×{low:.2f} to ×{high:.2f} of the live bytes, the range of measured XLA plans"
    if graph.source == CALCULATED:
        return (
            f"GPU memory interval: ×{low:.2f} to ×{high:.2f}, as the CPU calculated the steps: that differs by so much"
        )
    if domain not in DOMAIN_FACTORS:
        return "GPU memory interval: the widest measured one, because no such model was measured"
    text = f"GPU memory interval: ×{low:.2f} to ×{high:.2f}, the errors on {TRIED[domain]}"
    return text if graph.is_training else f"{text}; no inference was measured"


def _factors(graph: OpGraph, domain: Domain) -> tuple[float, float]:
    if _is_lowered(graph):
        return UNCOMPILED_FACTORS
    low, high = DOMAIN_FACTORS.get(domain, WIDEST_FACTORS)
    return (low * CALCULATED_FACTORS[0], high * CALCULATED_FACTORS[1]) if graph.source == CALCULATED else (low, high)


def _is_lowered(graph: OpGraph) -> bool:
    return graph.source == "stablehlo" and graph.planned_bytes is None
