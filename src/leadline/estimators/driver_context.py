"""Device memory that the driver takes for a process on a GPU, beside all that frameworks allocate.

A context holds local memory for the stack of every thread that can be resident at once, 1 KiB each by default (NVIDIA's
developer forum, thread 289339; ``cudaLimitStackSize``): 216 MiB on an A100 (arcs-skku/EMDC_llvm, issue 13). Bare
contexts come to twice that, whatever the GPU. Published, in MiB, with the ratio to 2 KiB a thread:

    H100                       534   1.01   meta-pytorch/torchcomms, pull request 777
    RTX PRO 6000 Blackwell     555   0.98   ggml-org/llama.cpp, pull request 23604
    RTX 6000 Ada               426   1.00   unslothai/unsloth-zoo, pull request 1053
    RTX 4060 Ti                107   1.05   ggml-org/llama.cpp, pull request 23604
    RTX 3090                   256   1.04   invoke-ai/InvokeAI, issue 9413
    Titan V                    319   1.00   pytorch/pytorch, issue 28394 (by PyCuda)

Kernels come on top once they are used: since release 1.13 PyTorch has CUDA load them lazily. A run of vLLM on an H100
took 0.16 GiB beyond its context (vllm-project/vllm, pull request 12126); all modules of PyTorch at once are 362 MiB
(pytorch/pytorch, pull request 86509), and hundreds more in older releases, which loaded them so and are not told here.
"""

from leadline.core.estimate import Interval
from leadline.core.hardware import Device, DeviceKind
from leadline.core.units import GIB, KIB, MIB

THREAD_BYTES = 2 * KIB
BARE_LOW, BARE_HIGH = 0.98, 1.05
"""How far bare contexts were from it."""
KERNELS = Interval(0.16 * GIB, 0.0, 362.0 * MIB)
"""Bytes of the kernels that a process has used: of one that was measured, of none, and of all that there are."""
UNKNOWN = Interval(500.0 * MIB, 250.0 * MIB, 800.0 * MIB)
"""For GPUs of other makers, and those of which the catalog does not tell the threads; an assumption."""


def context_bytes(device: Device) -> Interval:
    """Return the memory of the driver's context and of the kernels that it has loaded; nothing where there is none."""
    if device.kind is not DeviceKind.GPU:
        return Interval(0.0, 0.0, 0.0)
    if device.vendor.lower() != "nvidia" or not device.compute_units or not device.threads_per_unit:
        return UNKNOWN
    bare = float(THREAD_BYTES * device.compute_units * device.threads_per_unit)
    return Interval(bare + KERNELS.point, BARE_LOW * bare + KERNELS.low, BARE_HIGH * bare + KERNELS.high)
