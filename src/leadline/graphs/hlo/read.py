"""Read a saved StableHLO or HLO text file into the op graph of its step."""

from pathlib import Path

from leadline.core.documents import refuse_damaged
from leadline.core.errors import InvalidInput
from leadline.core.graph import LoopFacts, OpGraph, OpKind, Stage, StorageCategory, TracedJob
from leadline.core.workload import Phase, Workload
from leadline.files.read import decode_input, read_input
from leadline.graphs.hlo.graph import build_op_graph
from leadline.graphs.hlo.hlo_text import parse_hlo
from leadline.graphs.hlo.module import Module
from leadline.graphs.hlo.stablehlo_text import parse_stablehlo

FUSED_NOTE = "element-wise chains are grouped as XLA would fuse them: the compiler's own choice may differ"
BYTECODE = b"ML\xefR"


def read_hlo(workload: Workload, *, device_type: str = "cuda") -> TracedJob:
    """Return the step in the text file that ``workload`` names (implements ``GraphSource``).

    Uncompiled StableHLO and HLO is grouped into kernels. Scheduled HLO keeps its kernels.

    Raises:
        InvalidInput: The file cannot be read, is no such text, or does not train although the workload does.
    """
    reference = workload.model.reference
    path = Path(reference)
    content = read_input(path)
    if content.startswith(BYTECODE):
        raise InvalidInput(
            f"{reference} is MLIR bytecode, but Leadline reads text: write it with jax.jit(f).lower(…).as_text()"
        )
    return traced_job(decode_input(content, reference), workload, device_type=device_type)


def traced_job(text: str, workload: Workload, *, device_type: str) -> TracedJob:
    """Return the job of a module's text.

    The batch is inferred from the inputs if the workload has a number of samples. A module by itself loads no data.

    Raises:
        InvalidInput: The text is no module, or does not train although the workload does.
    """
    source_name = workload.model.reference
    with refuse_damaged(f"{source_name} is damaged, export the whole text again: its instructions do not fit together"):
        module = (parse_hlo if "HloModule" in text[:4096] else parse_stablehlo)(text, source_name)
        graph, notes = build_op_graph(module, source_name, device_type=device_type)
    stages = {op.stage for op in graph.ops}
    trains = module.aliases or Stage.BACKWARD in stages or Stage.OPTIMIZER in stages
    if workload.phase is Phase.TRAINING and not trains:
        raise InvalidInput(
            f"{source_name} returns none of its arguments updated, so it trains nothing: add --phase inference, "
            "or save a step that returns the new weights"
        )
    if not module.is_scheduled:
        notes += (FUSED_NOTE,)
    is_partitioned = module.is_scheduled or any(op.kind is OpKind.COMMUNICATION for op in graph.ops)
    if module.devices > 1 and not is_partitioned:
        note = (
            f"the module is for {module.devices} devices and not partitioned: its sizes are those of all devices; "
            "save the compiled module, compiled.as_text(), for one device's part"
        )
        notes += (note,)
    elif module.devices > 1 and workload.gpus != module.devices:
        notes += (f"the module is one device's part of {module.devices}: give --gpus {module.devices}",)
    batch = _infer_batch(module, graph) if workload.dataset.samples else None
    return TracedJob(graph, LoopFacts(batch=batch), notes=notes)


def _infer_batch(module: Module, graph: OpGraph) -> int | None:
    """Return the leading dimension that all inputs share, or ``None`` if they share none."""
    specs = [spec for _, spec in module.computations[module.entry].parameters]
    allocations = [event for event in graph.events if event.op == 0 and event.size_bytes > 0][: len(specs)]
    sized = [spec for spec in specs if spec.dtype != "token"]
    leading = {
        spec.shape[0]
        for spec, event in zip(sized, allocations, strict=False)
        if event.category is StorageCategory.INPUT and spec.shape
    }
    return leading.pop() if len(leading) == 1 else None
