"""Memory of a step that is divided over the GPUs of a job: the fullest GPU's part, and buffers for exchanges.

Activations left by tensor parallelism are those of Korthikanti et al. 2022.

**Exchange buffers.** DDP keeps all gradients again in its buckets, unless they are views (``gradient_as_bucket_view``;
PyTorch's documentation of DistributedDataParallel). DeepSpeed's ZeRO-1 and ZeRO-2 copy gradients into a bucket of
``reduce_bucket_size`` elements, allocated for each backward pass (deepspeed/runtime/zero/stage_1_and_2.py, defaults
``contiguous_gradients``, 5e8 elements, no ``overlap_comm``). Gathered weights go to their own storage.

FSDP wraps each layer. The weights of the layer in use and of the next one are whole (``limit_all_gathers`` allows no
more). In backward the gradients of two layers are whole as well. Embedding and output layer stay whole from their first
use to the end of backward, since torch/distributed/fsdp does not reshard the root's parameters after forward.
"""

from collections import Counter
from dataclasses import replace

from leadline.core.errors import InvalidInput
from leadline.core.estimate import Interval
from leadline.core.graph import BYTES_PER_ELEMENT, OpGraph, OpKind, Stage, StorageCategory
from leadline.core.workload import Fusion, ModelKind, Phase, Precision, Recompute, Sharding, Workload
from leadline.estimators.memory.device import PeakMemory
from leadline.estimators.parallelism.decoder_work import Cut, DecoderWork, read_work
from leadline.estimators.parallelism.division import count_layers, trained_bytes
from leadline.estimators.recent_cache import RecentResults

BUCKET_ELEMENTS = 5 * 10**8  # elements of a bucket of gradients (DeepSpeed's `reduce_bucket_size`)
AT_ONCE = 2  # layers that are whole at a time: one in use, one on its way

SELECTED = 0.5  # share of the products' outputs that selective recomputation keeps
# Work, scores and weights outside layers of recent graphs: a search over layouts asks for those of a few graphs often.
_WORKS, _SCORES, _OUTSIDE = RecentResults[DecoderWork](32), RecentResults[int](32), RecentResults[int](32)

CategoryBytes = dict[StorageCategory, int]


def exchange_buffers(workload: Workload, graph: OpGraph, stage: Stage) -> CategoryBytes:
    """Return the bytes by category that one GPU holds in a stage to exchange with other copies."""
    if not _has_modelled_buffers(workload):
        return {}
    plan = workload.parallelism
    if _is_mixed(workload) and plan.sharding is not Sharding.FULL:
        return {}  # gradients are reduced in the buffer that holds them
    if plan.sharding is Sharding.FULL:
        return _unit_buffers(graph, stage, workload)
    if plan.sharding is Sharding.NONE:
        return {StorageCategory.GRADIENT: trained_bytes(graph) // (plan.tensor * plan.pipeline)}
    if stage is not Stage.BACKWARD:
        return {}
    dtype = next((op.dtype for op in graph.ops if op.stage is Stage.OPTIMIZER), "float32")
    return {StorageCategory.GRADIENT: BUCKET_ELEMENTS * BYTES_PER_ELEMENT.get(dtype, 4)}


def _has_modelled_buffers(workload: Workload) -> bool:
    """Return whether copies exchange gradients; a script's own buffers are in its trace, and XLA plans its own."""
    if workload.gpus < 2 or workload.phase is not Phase.TRAINING:
        return False
    kinds = (ModelKind.HF_CONFIG, ModelKind.FUNCTION)
    return workload.model.kind in kinds and workload.parallelism.copies(workload.gpus) > 1


def describe_exchange_buffers(workload: Workload) -> str:
    """Return the assumption about exchange buffers, where a user may have chosen otherwise."""
    sentences = []
    if _is_mixed(workload):
        sentences.append("assumed: float32 gradients and a float32 copy of the weights, as Megatron and NeMo keep them")
    if workload.parallelism.divides_layers and workload.phase is Phase.TRAINING:
        interval = f"GPU memory interval of divided models: ×{DIVIDED_LOW:.2f} to ×{DIVIDED_HIGH:.2f}"
        sentences.append(f"{interval}, the errors on 178 published runs of 3 sources")
    return "; ".join([*sentences, *filter(None, [_describe_buffers(workload)])])


def _describe_buffers(workload: Workload) -> str:
    if _is_mixed(workload) and workload.parallelism.sharding is not Sharding.FULL:
        return ""
    if not _has_modelled_buffers(workload):
        return ""
    return {
        Sharding.NONE: "DDP's buckets hold a second copy of the gradients: gradient_as_bucket_view=True avoids it",
        Sharding.OPTIMIZER: "backward holds a bucket of 5e8 gradients, DeepSpeed's default",
        Sharding.GRADIENTS: "backward holds a bucket of 5e8 gradients, DeepSpeed's default",
        Sharding.FULL: "assuming FSDP wraps each layer: two layers, the embedding and the head are whole at a time",
    }[workload.parallelism.sharding]


def _unit_buffers(graph: OpGraph, stage: Stage, workload: Workload) -> CategoryBytes:
    """Return the whole weights and gradients of a model sharded by layers."""
    if stage is Stage.OPTIMIZER:
        return {}
    plan = workload.parallelism
    layers = max(1, count_layers(graph) // max(workload.accumulation, 1))
    outside = _OUTSIDE.get(graph, layers, lambda: _outside_bytes(graph, layers))
    inside = (graph.parameter_bytes - outside) / layers
    share = 1 - 1 / plan.copies(workload.gpus)  # the rest is a GPU's own
    whole = outside + AT_ONCE * inside
    buffers = {StorageCategory.PARAMETER: int(min(whole, graph.parameter_bytes) * share / plan.tensor)}
    if stage is Stage.BACKWARD:
        trained = trained_bytes(graph)
        gradients = whole if graph.trained_bytes is None else AT_ONCE * (trained / layers)
        buffers[StorageCategory.GRADIENT] = int(min(gradients, trained) * share / plan.tensor)
    return buffers


def _outside_bytes(graph: OpGraph, layers: int) -> int:
    """Return the bytes of weights that no layer holds: those of which there are fewer alike than layers."""
    sizes = Counter(
        event.size_bytes for event in graph.events
        if event.category is StorageCategory.PARAMETER and event.op == 0 and event.size_bytes > 0
    )  # fmt: skip
    return sum(size * count for size, count in sizes.items() if count < layers)


def divide_memory(peak: PeakMemory, workload: Workload, graph: OpGraph) -> PeakMemory:
    """Return one GPU's peak from the whole model's ``peak``: the fullest of the divided stages."""
    plan = workload.parallelism
    buffers = {stage: exchange_buffers(workload, graph, stage) for stage in Stage}
    if not plan.divides_layers and plan.sharding is Sharding.NONE and not any(buffers.values()):
        return peak
    stages = peak.by_stage or {Stage.FORWARD: peak.by_category}
    divided = {stage: _divide_moment(moment, stage, workload, graph) for stage, moment in stages.items()}
    for stage, moment in divided.items():
        for category, size in buffers[stage].items():
            moment[category] = moment.get(category, 0) + size
    moment = max(divided.values(), key=lambda moment: sum(moment.values()))
    share = sum(moment.values()) / max(sum(peak.by_category.values()), 1)
    return PeakMemory(int(peak.allocated_bytes * share), int(peak.reserved_bytes * share), moment, divided)


def _divide_moment(
    whole: dict[StorageCategory, int], stage: Stage, workload: Workload, graph: OpGraph
) -> dict[StorageCategory, int]:
    """Return one GPU's part of ``whole``, the fullest moment of a stage of the whole model."""
    plan, held = workload.parallelism, _held_share(workload, graph)
    copies = plan.shard_group or plan.copies(workload.gpus) * plan.context
    sharded = {
        StorageCategory.OPTIMIZER_STATE: plan.sharding is not Sharding.NONE,
        StorageCategory.GRADIENT: plan.sharding.gathers,
        StorageCategory.PARAMETER: plan.sharding is Sharding.FULL,
    }
    divided = dict(whole)
    for category, shared in sharded.items():
        share = 1 / (plan.tensor * plan.pipeline * copies) if shared else held
        divided[category] = int(divided.get(category, 0) * share)
    if _is_mixed(workload):
        share = held / (copies if sharded[StorageCategory.GRADIENT] else 1)
        divided[StorageCategory.GRADIENT] = int(_MIXED_GRADIENT_BYTES * graph.parameters * share)
        divided[StorageCategory.OPTIMIZER_STATE] = int(_MIXED_STATES * divided[StorageCategory.OPTIMIZER_STATE])
    temporary = whole.get(StorageCategory.TEMPORARY, 0)
    if stage is Stage.OPTIMIZER:  # an update works on the weights whose state is here
        share = held if plan.sharding is Sharding.NONE else 1 / (plan.tensor * plan.pipeline * copies)
        divided[StorageCategory.TEMPORARY] = int(temporary * share)
    else:
        divided[StorageCategory.TEMPORARY] = temporary // (plan.tensor * plan.context)
    divided[StorageCategory.ACTIVATION] = _held_activations(whole.get(StorageCategory.ACTIVATION, 0), workload, graph)
    if cache := divided.get(StorageCategory.KV_CACHE, 0):
        divided[StorageCategory.KV_CACHE] = cache_share_bytes(cache, workload, graph)
    return divided


# The recipe of Megatron Core, NeMo and nanotron: weights in 16 bits; float32 gradients in a buffer of their own, and
# a float32 copy of the weight besides Adam's two states, where a traced 16-bit model has two states of 2 bytes.
_MIXED_STATES = 3.0
_MIXED_GRADIENT_BYTES = 4


# Measured over predicted memory of divided models: the 5 % and 95 % quantiles over 178 published runs of nanotron,
# torchtitan and BigScience (llm_train_scale), each source counting the same.
DIVIDED_LOW, DIVIDED_HIGH = 0.70, 1.50


def widen_divided_memory(memory: Interval, workload: Workload) -> Interval:
    """Return the interval of a GPU's memory, at least as wide as the errors on divided models where it is one."""
    if not workload.parallelism.divides_layers or workload.phase is not Phase.TRAINING:
        return memory
    low, high = DIVIDED_LOW * memory.point, DIVIDED_HIGH * memory.point
    return replace(memory, low=min(memory.low, low), high=max(memory.high, high))


def _is_mixed(workload: Workload) -> bool:
    """Return whether the framework keeps float32 copies that the traced model does not show."""
    default = Precision.BF16 if workload.model.kind is ModelKind.HF_CONFIG else None
    plan, precision = workload.parallelism, workload.precision or default
    fused = plan.fusion is Fusion.LIBRARY or (plan.fusion is None and plan.divides_layers)
    half = precision is not None and not precision.autocast and precision.compute in ("bfloat16", "float16")
    return fused and half and workload.phase is Phase.TRAINING


def _held_share(workload: Workload, graph: OpGraph) -> float:
    """Return the share of the weights on the fullest GPU without sharding.

    Layers are divided by stages, experts by GPUs. The first and the last stage hold a table of the vocabulary, too.
    """
    plan = workload.parallelism
    if plan.expert * plan.pipeline == 1:
        return 1 / plan.tensor
    work = _WORKS.get(graph, None, lambda: read_work(graph, 1))
    experts = work.expert_weights / max(graph.parameters, 1)
    if plan.expert > 1 and not experts:
        raise InvalidInput("--expert-parallel divides experts, and this model's graph shows none: leave it out")
    table = max((p.n * p.k for p in work.products if p.cut is Cut.HEAD), default=0) / max(graph.parameters, 1)
    tables = table * max(1, round((1 - experts - work.layer_weights / max(graph.parameters, 1)) / max(table, 1e-9)))
    ends = table if plan.pipeline > 1 else tables
    dense = ((1 - experts - tables) / plan.pipeline + ends) / plan.tensor
    return dense + experts / (plan.pipeline * plan.expert_parts)


def _held_activations(whole_bytes: int, workload: Workload, graph: OpGraph) -> int:
    """Return the activations on the fullest GPU: the first stage of a pipeline, or the last one with the scores.

    The first of p stages holds those of p microbatches, and with v chunks (p − 1)/v more (Narayanan et al. 2021,
    section 2.2). Without sequence parallelism, norms and dropout keep 10 of 34 bytes on each tensor-parallel GPU
    (Korthikanti et al. 2022, table 2).
    """
    plan = workload.parallelism
    held_scores = _SCORES.get(graph, None, lambda: _scores_bytes(graph))
    scores = min(held_scores, whole_bytes) if plan.pipeline > 1 else 0
    kept = 1 / plan.tensor if plan.sequence else (10 + 24 / plan.tensor) / 34
    layers = float(whole_bytes - scores)
    if workload.recompute is Recompute.SELECTIVE:
        layers = min(layers, _selected_bytes(graph) + (0 if plan.pipeline > 1 else held_scores))
    elif _is_mixed(workload) and workload.recompute is Recompute.NONE:
        layers = min(layers, _library_bytes(graph) + (0 if plan.pipeline > 1 else held_scores))
    layers *= kept / plan.context
    if plan.pipeline == 1:
        return int(layers)
    in_flight = min(workload.accumulation, plan.pipeline + (plan.pipeline - 1) / plan.virtual)
    return int(max(in_flight * layers / plan.pipeline, layers / plan.pipeline + scores / (plan.tensor * plan.context)))


def _selected_bytes(graph: OpGraph) -> float:
    """Return the activations that selective recomputation keeps of a microbatch.

    With written attention, all but its scores (Korthikanti et al. 2022); else every other product's output, attention's
    output and each layer's input (torchtitan).
    """
    work = _WORKS.get(graph, None, lambda: read_work(graph, 1))
    outputs = sum(p.m * p.n * p.count * max(p.experts, 1) for p in work.products if p.cut is not Cut.HEAD)
    stream = 2 * work.attention_blocks * work.tokens * work.width
    microbatches = max(sum(p.count for p in work.products if p.cut is Cut.HEAD), 1.0)
    return 2.0 * (stream + (outputs if work.scores else SELECTED * outputs)) / microbatches


def _library_bytes(graph: OpGraph) -> float:
    """Return the activations that fused layers keep of a microbatch, in 16 bits.

    They are the outputs of the products that are cut along the output, the inputs of the others, and the inputs and
    outputs of norms: 34 bytes a token and channel for GPT without dropout's masks (Korthikanti et al. 2022).
    """
    work = _WORKS.get(graph, None, lambda: read_work(graph, 1))
    layers = [p for p in work.products if p.cut is not Cut.HEAD]
    kept = sum(p.m * (p.k if p.cut is Cut.INNER else p.n) * p.count * max(p.experts, 1) for p in layers)
    norms = 2 * (work.reductions + work.expert_layers) * work.tokens * work.width
    microbatches = max(sum(p.count for p in work.products if p.cut is Cut.HEAD), 1.0)
    return 2.0 * (kept + norms + work.scores) / microbatches


def _scores_bytes(graph: OpGraph) -> int:
    """Return the most bytes of the vocabulary's scores and what is made from them that are held at once."""
    forward = [place for place, op in enumerate(graph.ops) if op.stage is Stage.FORWARD and op.kind is OpKind.GEMM]
    if not forward:
        return 0
    head = graph.ops[forward[-1]]
    size = head.dims.get("m", 0) * head.dims.get("n", 0)
    held, most, live = 0, 0, dict[int, int]()
    for event in graph.events:
        if event.size_bytes > 0 and event.op >= forward[-1] and event.size_bytes >= size:
            live[event.storage] = event.size_bytes
            held += event.size_bytes
        elif event.size_bytes < 0:
            held -= live.pop(event.storage, 0)
        most = max(most, held)
    return most


def cache_share_bytes(cache_bytes: int, workload: Workload, graph: OpGraph) -> int:
    """Return one GPU's bytes of a model's KV cache; heads are divided, but none is cut."""
    plan = workload.parallelism
    return cache_bytes // (plan.pipeline * min(plan.tensor, graph.cache_heads or plan.tensor))
