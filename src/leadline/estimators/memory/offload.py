"""Memory saved and time lost by keeping part of a step on the host or a neighbouring GPU.

Optimizer states go to the host as in ZeRO-Offload (Ren et al. 2021, section 4): once a step, the gradients of the
trained weights go down, the host's cores update, and the new weights come back. None of it overlaps with the step.
Gradients are summed on the device before, so accumulation moves nothing more.

Activations go out in each forward pass and come back in its backward pass, so every microbatch moves them twice.
Weights cross the bus in every forward pass, as in FlexGen (Sheng et al. 2023, section 3) for one batch: once for the
prompt, and once for each further token. A transfer t overlaps with the kernels k of its pass, which takes max(k, t).
Activations go to a neighbour over its link as in MPress (Zhou et al. 2023).
"""

import math
from dataclasses import replace

from leadline.core.estimate import Estimate, Interval
from leadline.core.frozen import Frozen
from leadline.core.graph import BYTES_PER_ELEMENT, StorageCategory
from leadline.core.hardware import Device, DeviceKind
from leadline.core.units import GB, format_bytes
from leadline.core.workload import Optimizer, Phase, Precision, Workload

HOST_BYTES_PER_S = 60 * GB  # memory bandwidth that an optimizer step on the host's cores reaches; an assumption
STAYS = 0.1  # share of offloaded bytes that stays on the device: the layers in use and the next
# Standard deviation of the logarithm of a transfer's time, an assumption: nine in ten within a factor of two.
DOUBT = math.log(2.0) / 1.645

WORDS = {
    StorageCategory.OPTIMIZER_STATE: "optimizer state", StorageCategory.ACTIVATION: "activations",
    StorageCategory.PARAMETER: "weights",
}  # fmt: skip


class OffloadOption(Frozen):
    """One offload: its description, the memory then needed, and the slower step."""

    description: str
    memory_bytes: Interval
    step_s: Interval | None
    gpus: int = 1


def list_offloads(
    estimate: Estimate, device: Device, workload: Workload, *, microbatches: int = 1
) -> list[OffloadOption]:
    """Return the possible offloads of a step of so many ``microbatches`` on ``device``, fastest first.

    Where the device's link to its host is unknown, so is the step. A device in its host's memory keeps nothing there.
    """
    sizes = {name: estimate.basis.memory_breakdown_bytes.get(name.value, 0.0) for name in WORDS}
    states, activations, weights = (sizes[name] for name in WORDS)
    rate = device.host_bytes_per_s
    bus_s = 1 / rate if rate else math.inf  # of a byte
    how = f"{_rate(rate)} assumed" if rate else f"the link of {device.name} to it is unknown, so the time is too"
    options = []
    if workload.phase is Phase.TRAINING:
        host = f"on the host ({how})"
        trained = min(_updated_bytes(states, workload), weights)
        update_s = 2 * trained * bus_s + 2 * (states + 2 * trained) / HOST_BYTES_PER_S
        swap_s = 2 * activations * microbatches * bus_s
        if not device.shares_host_memory:
            options.append(_kept(estimate, StorageCategory.OPTIMIZER_STATE, states, host, added_s=update_s))
            options.append(_kept(estimate, StorageCategory.ACTIVATION, activations, host, hidden_s=swap_s))
        if device.link_bytes_per_s and device.kind is DeviceKind.GPU:
            link = device.link_bytes_per_s / 2  # the figure counts both directions
            beside = f"on a neighbouring GPU ({_rate(link)} a direction)"
            swap_s = 2 * activations * microbatches / link
            kept = _kept(estimate, StorageCategory.ACTIVATION, activations, beside, hidden_s=swap_s)
            options.append(kept and replace(kept, gpus=2))
    elif not device.shares_host_memory:
        each = f"on the host, moved in every forward pass ({how})"
        options.append(_kept(estimate, StorageCategory.PARAMETER, weights, each, hidden_s=weights * bus_s))
    possible = [option for option in options if option is not None]
    return sorted(possible, key=lambda option: option.step_s.point if option.step_s else math.inf)


def _kept(
    estimate: Estimate, category: StorageCategory, size: float, where: str, *, added_s: float = 0.0,
    hidden_s: float = 0.0,
) -> OffloadOption | None:  # fmt: skip
    """Return a part kept elsewhere, which adds ``added_s`` to a step or ``hidden_s`` behind its kernels."""
    memory = estimate.gpu_memory_bytes
    if memory is None or not size:
        return None
    saved = min((1 - STAYS) * size, 0.95 * memory.low)
    remaining = Interval(memory.point - saved, memory.low - saved, memory.high - saved, memory.level)
    slower = None
    passes = _passes(estimate)
    if passes and math.isfinite(added_s + hidden_s):
        factor = math.exp(1.645 * DOUBT)
        point, low, high = (
            sum(count * max(getattr(kernels, end) + added_s * by, hidden_s * by) for kernels, count in passes)
            for end, by in (("point", 1.0), ("low", 1 / factor), ("high", factor))
        )
        slower = Interval(point, low, high, passes[0][0].level)
    return OffloadOption(f"keep {format_bytes(saved)} of {WORDS[category]} {where}", remaining, slower)


def _passes(estimate: Estimate) -> list[tuple[Interval, int]]:
    """Return the time and number of the parts of a step that a transfer overlaps with: the step, or each token's."""
    tokens = estimate.token_times
    if tokens is None or tokens.time_per_output_token_s is None:
        return [] if estimate.step_s is None else [(estimate.step_s, 1)]
    return [(tokens.time_to_first_token_s, 1), (tokens.time_per_output_token_s, tokens.generated_tokens - 1)]


def _updated_bytes(states: float, workload: Workload) -> float:
    """Return the bytes of the weights that this GPU's optimizer states belong to: the trained ones, or its shard."""
    optimizer = workload.optimizer or Optimizer.ADAMW
    elements = states / max(optimizer.states, 1)
    if not optimizer.quantized:
        return elements  # a state is as wide as its weight
    return elements * BYTES_PER_ELEMENT[(workload.precision or Precision.BF16).weights]


def _rate(bytes_per_s: float) -> str:
    return f"{bytes_per_s / GB:.0f} GB/s"
