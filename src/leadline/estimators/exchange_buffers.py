"""What copies of a model hold beside it to exchange gradients and weights.

DDP keeps all gradients once more in its buckets, unless they are views of these (``gradient_as_bucket_view``; PyTorch's
documentation of DistributedDataParallel). DeepSpeed's ZeRO-1 and ZeRO-2 copy gradients into a contiguous bucket of
``reduce_bucket_size`` elements, allocated whole for each backward pass (deepspeed/runtime/zero/stage_1_and_2.py,
defaults ``contiguous_gradients``, 5e8 elements, no ``overlap_comm``); what it gathers of weights goes where they lie.

FSDP wraps each layer: the weights of the one in use are whole, and those of the next, which is gathered meanwhile
(``limit_all_gathers`` lets no more be on their way); in backward also the gradients of one layer that are made and of
one that are reduced. What no layer holds, embedding and output layer, stays whole from its first use in forward to the
end of backward (torch/distributed/fsdp does not reshard the root's parameters after forward), and so do its gradients.
"""

from collections import Counter

from leadline.core.graph import BYTES_PER_ELEMENT, OpGraph, OpKind, Stage, StorageCategory
from leadline.core.workload import ModelKind, Phase, Sharding, Workload

BUCKET_ELEMENTS = 5 * 10**8
"""Elements of a bucket of gradients (DeepSpeed's ``reduce_bucket_size``)."""
AT_ONCE = 2
"""Layers that are whole at a time: one in use, one on its way."""

Held = dict[StorageCategory, int]


def exchange_buffers(workload: Workload, graph: OpGraph, stage: Stage) -> Held:
    """Return the bytes that one GPU holds in a stage of a step to exchange with the other copies, by category.

    A script's own are in its trace, and XLA plans its own.
    """
    plan = workload.parallelism
    copies, parts = plan.copies(workload.gpus), plan.tensor * plan.pipeline
    if copies < 2 or workload.phase is not Phase.TRAINING or workload.model.kind not in MODELLED:
        return {}
    trained = graph.parameter_bytes if graph.trained_bytes is None else graph.trained_bytes
    if plan.sharding is Sharding.NONE:
        return {StorageCategory.GRADIENT: trained // parts}
    if plan.sharding is Sharding.FULL:
        return _of_units(graph, stage, workload.accumulation, copies, trained, plan.tensor)
    if stage is not Stage.BACKWARD:
        return {}
    return {StorageCategory.GRADIENT: BUCKET_ELEMENTS * _gradient_width(graph)}


MODELLED = (ModelKind.HF_CONFIG, ModelKind.FUNCTION)


def sentence(workload: Workload) -> str:
    """Return what is taken of the buffers of an exchange, where a user may have chosen otherwise."""
    if workload.gpus < 2 or workload.phase is not Phase.TRAINING or workload.model.kind not in MODELLED:
        return ""
    if workload.parallelism.copies(workload.gpus) < 2:
        return ""
    return {
        Sharding.NONE: "gradients are held once more in DDP's buckets: gradient_as_bucket_view=True saves that",
        Sharding.OPTIMIZER: "a bucket of 5e8 gradients is held in backward, DeepSpeed's default",
        Sharding.GRADIENTS: "a bucket of 5e8 gradients is held in backward, DeepSpeed's default",
        Sharding.FULL: "two layers, and what no layer holds, are whole at a time: each layer wrapped, as FSDP does",
    }[workload.parallelism.sharding]


def _of_units(graph: OpGraph, stage: Stage, accumulation: int, copies: int, trained: int, tensor: int) -> Held:
    """Return what is whole of weights and gradients that are sharded by layers."""
    if stage is Stage.OPTIMIZER:
        return {}
    layers = max(1, layers_of(graph) // max(accumulation, 1))
    outside = _outside_bytes(graph, layers)
    inside = (graph.parameter_bytes - outside) / layers
    share = 1 - 1 / copies  # the rest is a GPU's own
    gathered = min(outside + AT_ONCE * inside, graph.parameter_bytes) * share
    held = {StorageCategory.PARAMETER: int(gathered / tensor)}
    if stage is Stage.BACKWARD:
        of_all = graph.trained_bytes is None
        made = (outside if of_all else 0) + AT_ONCE * (inside if of_all else trained / layers)
        held[StorageCategory.GRADIENT] = int(min(made, trained) * share / tensor)
    return held


def _outside_bytes(graph: OpGraph, layers: int) -> int:
    """Return the bytes of weights that no layer holds: those of which there are fewer alike than layers."""
    sizes = Counter(
        event.size_bytes for event in graph.events
        if event.category is StorageCategory.PARAMETER and event.op == 0 and event.size_bytes > 0
    )  # fmt: skip
    return sum(size * count for size, count in sizes.items() if count < layers)


def _gradient_width(graph: OpGraph) -> int:
    """Return the bytes of a number of a gradient: that of the weights which are updated."""
    dtype = next((op.dtype for op in graph.ops if op.stage is Stage.OPTIMIZER), "float32")
    return BYTES_PER_ELEMENT.get(dtype, 4)


def layers_of(graph: OpGraph) -> int:
    """Return how often attention runs forward in a step, over all layers and microbatches."""
    return sum(op.count for op in graph.ops if op.kind is OpKind.ATTENTION and op.stage is Stage.FORWARD)
