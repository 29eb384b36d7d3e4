"""Read a saved StableHLO or HLO text file into the op graph of its step: one op per kernel."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from leadline.core.documents import refuse_damaged
from leadline.core.errors import InvalidInput
from leadline.core.graph import LoopFacts, Op, OpGraph, OpKind, Stage, StorageCategory, TensorSpec, TracedJob
from leadline.core.workload import Phase, Workload
from leadline.files.read import decode_input, read_input
from leadline.graphs.hlo.costs import base_opcode, node_dims, node_flops, node_kind, node_traffic
from leadline.graphs.hlo.flatten import FlatProgram, HloNode, flatten
from leadline.graphs.hlo.fusion import FusedKernel, compiled_kernels, fuse_kernels
from leadline.graphs.hlo.hlo_text import parse_hlo
from leadline.graphs.hlo.module import OPCODES, Module
from leadline.graphs.hlo.stablehlo_text import parse_stablehlo
from leadline.graphs.hlo.step import argument_roles, node_stages, storage_events

FUSED_NOTE = "element-wise chains are grouped as XLA would fuse them: the compiler's own choice may differ"
BYTECODE = b"ML\xefR"
SLICES = frozenset({"dynamic_slice", "slice"})
ALIASES, PRODUCTS = OPCODES["aliases"], OPCODES["products"]


def read_hlo(workload: Workload, *, device_type: str = "cuda") -> TracedJob:
    """Return the step in the text file that ``workload`` names (implements ``GraphSource``).

    Uncompiled StableHLO and HLO is grouped into kernels. Scheduled HLO keeps its kernels.

    Raises:
        InvalidInput: The file cannot be read, is no such text, or does not train although the workload does.
    """
    reference = workload.model.reference
    content = read_input(Path(reference))
    if content.startswith(BYTECODE):
        raise InvalidInput(
            f"{reference} is MLIR bytecode, but Leadline reads text: write it with jax.jit(f).lower(…).as_text()"
        )
    return traced_job(decode_input(content, reference), workload, device_type=device_type)


def traced_job(text: str, workload: Workload, *, device_type: str, weights: Sequence[TensorSpec] = ()) -> TracedJob:
    """Return the job of a module's text. ``weights`` are those of the step; without any they are inferred.

    The batch is inferred from the inputs if the workload has a number of samples. A module by itself loads no data.

    Raises:
        InvalidInput: The text is no module, or does not train although the workload does.
    """
    source_name = workload.model.reference
    with refuse_damaged(f"{source_name} is damaged, export the whole text again: its instructions do not fit together"):
        module = (parse_hlo if "HloModule" in text[:4096] else parse_stablehlo)(text, source_name)
        graph, notes = _build_op_graph(module, source_name, device_type=device_type, weights=weights)
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


def _build_op_graph(
    module: Module, source_name: str, *, device_type: str = "cuda", weights: Sequence[TensorSpec] = ()
) -> tuple[OpGraph, tuple[str, ...]]:
    """Return the op graph of a module, and notes about assumptions.

    A module that a compiler has scheduled keeps its kernels, one op each. Any other is grouped into kernels as XLA
    would fuse it. float32 products run in TF32 where the device has it, as XLA lets them on a GPU, unless the module
    asks for a higher precision.

    Raises:
        InvalidInput: A computation or an operand is missing.
    """
    program = flatten(module, source_name)
    stages = node_stages(program)
    kernels = compiled_kernels(program) if module.is_scheduled else fuse_kernels(program)
    kernels = [kernel for kernel in kernels if not _is_bookkeeping(program, kernel)]
    categories, weights = argument_roles(program, stages, weights)
    endless = sum("depends on data" in note for note in program.notes)
    graph = OpGraph(
        ops=tuple(_ops(program, kernels, stages, device_type, module.devices)),
        events=tuple(storage_events(program, kernels, stages, categories)),
        parameters=sum(weight.elements for weight in weights),
        parameter_bytes=sum(weight.size_bytes for weight in weights),
        device_type=device_type,
        source=module.dialect,
        fallbacks={"loop of unknown length": endless} if program.notes else {},
    )
    return graph, (*program.notes, *_unknown_calls(program, kernels))


def _is_bookkeeping(program: FlatProgram, kernel: FusedKernel) -> bool:
    """Return whether a kernel only counts: it writes single whole numbers."""
    specs = [program.values[value] for value in kernel.writes]
    return all(not spec.shape and "float" not in spec.dtype for spec in specs)


def _ops(
    program: FlatProgram, kernels: Sequence[FusedKernel], stages: Sequence[Stage], device_type: str, devices: int
) -> Iterator[Op]:
    """Yield the ops of the kernels. ``devices`` take part in a collective that does not say how many."""
    made_by: dict[int, int] = {}
    for position, kernel in enumerate(kernels):
        makers = {made_by[value] for value in kernel.reads if value in made_by}
        made_by.update(dict.fromkeys(kernel.writes, position))
        op = _op(program, kernel, stages[kernel.nodes[-1]], device_type, tuple(sorted(makers - {position})))
        if op.kind is OpKind.COMMUNICATION and not op.dims["ranks"]:
            op = replace(op, dims={**op.dims, "ranks": devices})
        yield op


def _op(program: FlatProgram, kernel: FusedKernel, stage: Stage, device_type: str, sources: tuple[int, ...]) -> Op:
    nodes = [program.nodes[position] for position in kernel.nodes]
    last = nodes[-1]
    inner = [part for node in nodes for part in (node.inner.nodes if node.inner else [node])]
    owner = last.inner or program
    main = max(inner, key=lambda part: node_flops(owner, part) if part.opcode in PRODUCTS else -1.0)
    is_matrix = main.opcode in PRODUCTS and node_flops(owner, main) > 0
    is_single = is_matrix or len(inner) == 1
    kind = node_kind(owner, main) if is_single else _chain_kind(owner, inner)
    inputs = [program.values[value] for value in kernel.reads]
    outputs = [program.values[value] for value in kernel.writes]
    read, written = _traffic(program, kernel, nodes)
    computing = [part for part in inner if part.opcode not in ALIASES]
    return Op(
        name=f"xla.{'fusion' if len(computing) > 1 else base_opcode(last)}",
        kind=OpKind.OPTIMIZER if stage is Stage.OPTIMIZER and kind is OpKind.ELEMENTWISE else kind,
        stage=stage,
        dtype=_dtype(owner, main if is_matrix else None, inputs, outputs, device_type),
        flops=sum(node_flops(program, node) for node in nodes),
        bytes_read=read,
        bytes_written=written,
        inputs=tuple(inputs[:8]),
        outputs=tuple(outputs[:8]),
        dims=node_dims(owner, main) if is_single else {},
        sources=sources,
        count=last.count,
    )


def _traffic(program: FlatProgram, kernel: FusedKernel, nodes: Sequence[HloNode]) -> tuple[float, float]:
    """Return the bytes read and written. A product reads a broadcast operand at its stored size."""
    stored_bytes = float(sum(program.values[value].size_bytes for value in kernel.reads))
    if len(nodes) == 1:
        read, written = node_traffic(program, nodes[0])
        return (min(read, stored_bytes) if nodes[0].opcode in PRODUCTS else read), written
    makers = [(value, program.nodes[program.makers[value]]) for value in kernel.writes]
    # An update in place writes its second operand alone.
    changed = [maker.inputs[1] if maker.opcode == "dynamic_update_slice" else value for value, maker in makers]
    read = sum(_read_bytes(program, value, nodes) for value in kernel.reads)
    return float(read), float(sum(program.values[value].size_bytes for value in changed))


def _read_bytes(program: FlatProgram, value: int, nodes: Sequence[HloNode]) -> int:
    """Return the bytes that a chain reads of a value: its slices if it reads nothing else of it."""
    whole, sliced = program.values[value].size_bytes, 0
    aliases = {value}
    for node in nodes:
        if not aliases.intersection(node.inputs):
            continue
        if node.opcode in ALIASES:
            aliases.update(node.outputs)
        elif node.opcode in SLICES:
            sliced += program.values[node.outputs[0]].size_bytes
        else:
            return whole
    return min(whole, sliced) if sliced else whole


def _chain_kind(program: FlatProgram, nodes: Sequence[HloNode]) -> OpKind:
    """Return the kind of a chain by its opcodes."""
    opcodes = {base_opcode(node) for node in nodes}
    if opcodes <= OPCODES["moves"] | ALIASES | {"dynamic_update_slice"}:
        return OpKind.COPY
    for opcode in ("scatter", "gather", "sort", "reduce_window", "select_and_scatter"):
        if opcode in opcodes:
            return node_kind(program, next(node for node in nodes if base_opcode(node) == opcode))
    if "reduce" not in opcodes:
        return OpKind.ELEMENTWISE
    if "exponential" in opcodes:
        return OpKind.SOFTMAX
    return OpKind.NORM if "rsqrt" in opcodes else OpKind.REDUCTION


def _dtype(
    program: FlatProgram, main: HloNode | None, inputs: list[TensorSpec], outputs: list[TensorSpec], device_type: str
) -> str:
    if main is not None:
        dtype = program.values[main.inputs[0]].dtype
        return "tf32" if dtype == "float32" and device_type == "cuda" and not main.number("precise", 0) else dtype
    dtypes = [spec.dtype for spec in (*outputs, *inputs)]
    return next((dtype for dtype in dtypes if "float" in dtype), dtypes[0] if dtypes else "float32")


def _unknown_calls(program: FlatProgram, kernels: Sequence[FusedKernel]) -> list[str]:
    """Return notes about custom calls whose arithmetic is unknown."""
    counts: Counter[str] = Counter()
    for node in (program.nodes[position] for kernel in kernels for position in kernel.nodes):
        target = str(node.attributes.get("target", ""))
        unknown = node.opcode == "custom_call" and node_kind(program, node) is OpKind.OTHER
        if unknown and target and target not in OPCODES["memory_calls"]:
            counts[target] += node.count
    return [
        f"custom call {target} ({count} ×) counts by its traffic alone: its arithmetic is unknown"
        for target, count in counts.items()
    ]
