"""Kind, sizes, arithmetic and memory traffic of a recorded op."""

import math
from typing import Any, Dict, List, Sequence, Tuple

from leadline.graphs.torch.worker import distributed
from leadline.graphs.torch.worker.ops import TABLES
from leadline.graphs.torch.worker.recorder import Recorder
from leadline.graphs.torch.worker.session import TraceSession
from leadline.graphs.torch.worker.windows import RecordedOp, TraceWindow

Shape = Tuple[int, ...]

_KIND: Dict[str, str] = {name: kind for kind, names in TABLES["kinds"].items() for name in names}
FLOPS_PER_ELEMENT: Dict[str, int] = TABLES["flops_per_element"]
"""Floating-point operations per element where it is not one. Round figures, unlike the sizes."""


def _describe_op(op: RecordedOp) -> Dict[str, Any]:
    """Return the fields of ``leadline.core.graph.Op``, without tensors, stage and sources."""
    packet = op.func if isinstance(op.func, str) else str(op.func._overloadpacket)
    name = packet.rpartition(".")[2]
    extra = op.extra or {}
    base_name = name[:-1] if name.endswith("_") and name not in _KIND else name
    kind = extra.get("kind") or _kind(name, base_name)
    dims = extra.get("dims") or _dims(kind, name, op)
    read, written = _traffic(name, op)
    flops = extra.get("flops")
    return {
        "name": packet,
        "kind": kind,
        "dtype": _dtype(op),
        "flops": float(_flops(kind, name, base_name, dims, op) if flops is None else flops),
        "bytes_read": float(extra.get("bytes_read", read)),
        "bytes_written": float(extra.get("bytes_written", written)),
        "dims": dims,
        "kernels": extra.get("kernels") or _kernels(name, op),
    }


def _kind(name: str, base_name: str) -> str:
    if name in _KIND or base_name in _KIND:
        return _KIND.get(name) or _KIND[base_name]
    if name.startswith("_fused_"):
        return "optimizer"
    is_linalg = name.startswith(("_fft", "linalg_", "_linalg", "cholesky", "triangular_solve"))
    return "other" if is_linalg else "elementwise"


def _dtype(op: RecordedOp) -> str:
    """Return the dtype of the arithmetic: the widest-ranked floating input, else the first output."""
    dtypes = [str(spec[1]).rpartition(".")[2] for spec in (*op.inputs, *op.outputs)]
    floating = [dtype for dtype in dtypes if "float" in dtype or "complex" in dtype]
    return next(iter(floating or dtypes), "float32")


def _dims(kind: str, name: str, op: RecordedOp) -> Dict[str, int]:
    shapes = [spec[0] for spec in op.inputs]
    if kind == "gemm":
        return _gemm_dims(name, shapes)
    if kind == "conv":
        return _conv_dims(name, op, shapes)
    return _attention_dims(name, shapes) if kind == "attention" else {}


def _gemm_dims(name: str, shapes: List[Shape]) -> Dict[str, int]:
    pair = shapes[1:3] if name in ("addmm", "baddbmm", "addbmm", "addmv") else shapes[:2]
    if len(pair) < 2:
        return {}
    left, right = pair
    if name.endswith("grouped_mm") and len(left) == 2:
        # Groups share the rows, or the terms of the sums, evenly.
        groups = shapes[-1][0]
        if len(right) == 3:
            return {"b": groups, "m": math.ceil(left[0] / groups), "n": right[2], "k": left[1]}
        return {"b": groups, "m": left[0], "n": right[1], "k": math.ceil(left[1] / groups)}
    if len(left) == 3 and len(right) == 3:
        return {"b": left[0], "m": left[1], "n": right[2], "k": left[2]}
    if name == "linear":
        return {"b": 1, "m": math.prod(left[:-1]), "n": right[0], "k": left[-1]}
    rows = left[0] if len(left) > 1 else 1
    return {"b": 1, "m": rows, "n": right[1] if len(right) > 1 else 1, "k": left[-1]}


def _conv_dims(name: str, op: RecordedOp, shapes: List[Shape]) -> Dict[str, int]:
    backward = "backward" in name
    if len(shapes) < (3 if backward else 2):
        return {}
    grad_or_out = shapes[0] if backward else op.outputs[0][0]
    source, weight = (shapes[1], shapes[2]) if backward else (shapes[0], shapes[1])
    first = 4 if backward else 3
    stride, _, dilation, transposed, _, groups = (list(op.args[first : first + 6]) + [None] * 6)[:6]
    small, large = (source, grad_or_out) if transposed else (grad_or_out, source)
    spatial, taps = tuple(small[2:]), tuple(weight[2:])
    dims = {
        "n": source[0],
        "c": large[1] if not transposed else source[1],
        "k": grad_or_out[1],
        "h": math.prod(spatial[:-1]),
        "w": spatial[-1] if spatial else 1,
        "r": math.prod(taps[:-1]),
        "s": taps[-1] if taps else 1,
        "groups": int(groups or 1),
        "stride": _first(stride),
        "dilation": _first(dilation),
    }
    if len(spatial) == 3:
        dims["depth"] = spatial[0]
    if transposed:
        dims["transposed"] = 1
    if op.channels_last:
        dims["channels_last"] = 1
    if backward:
        mask = op.args[-1] if isinstance(op.args[-1], (list, tuple)) else (True, True, True)
        dims["gradients"] = int(bool(mask[0])) + int(bool(mask[1]))
    return dims


def _first(value: Any) -> int:
    first = next(iter(value), None) if isinstance(value, (list, tuple)) else value
    return 1 if first is None else int(first)


def _attention_dims(name: str, shapes: List[Shape]) -> Dict[str, int]:
    start = 1 if "backward" in name else 0
    if len(shapes) < start + 2 or len(shapes[start]) != 4:
        return {}
    query, key = shapes[start], shapes[start + 1]
    # These two take batch x positions x heads x width, the others batch x heads x positions x width.
    heads, positions = (2, 1) if name.startswith(("_flash_attention", "_efficient_attention")) else (1, 2)
    return {"b": query[0], "h": query[heads], "q": query[positions], "kv": key[positions], "d": query[3]}


def _flops(kind: str, name: str, base_name: str, dims: Dict[str, int], op: RecordedOp) -> float:
    if kind == "gemm" and dims:
        return 2.0 * dims["b"] * dims["m"] * dims["n"] * dims["k"]
    if kind == "conv" and dims:
        points = 2.0 * dims["n"] * dims["h"] * dims["w"]
        return points * dims["r"] * dims["s"] * dims["c"] * dims["k"] / dims["groups"] * dims.get("gradients", 1)
    if kind == "attention" and dims:
        values = op.inputs[3 if "backward" in name else 2][0][-1]
        forward_flops = dims["b"] * dims["h"] * dims["q"] * dims["kv"] * (dims["d"] + values)
        return float(forward_flops) * (5 if "backward" in name else 2) * (0.5 if _is_causal(name, op) else 1.0)
    if name == "spmm":
        return float(2 * math.prod(op.inputs[-2][0]) * math.prod(op.outputs[0][0][1:]))
    if name == "sddmm":
        return float(2 * math.prod(op.outputs[0][0]) * op.inputs[-1][0][-1])
    if name.startswith("selective_scan"):
        # 9 operations per position, channel and state, as its authors count them, and twice that backward.
        sizes = [spec[0] for spec in (op.inputs[2:] if "backward" in name else op.inputs)]
        return float(9 * math.prod(sizes[0]) * sizes[2][-1] * (2 if "backward" in name else 1))
    if kind in ("copy", "index", "embedding", "communication"):
        return 0.0
    elements = max((math.prod(spec[0]) for spec in (*op.outputs, *op.inputs)), default=0)
    if len(op.outputs) > 1 and (name.startswith("_foreach") or kind == "optimizer"):
        # A fused optimizer updates lists of parameters and of each of their states.
        lists = 1 if name.startswith("_foreach") else 3 if "adam" in str(op.func) else 2
        elements = sum(math.prod(spec[0]) for spec in op.outputs) // lists
    return float(elements * FLOPS_PER_ELEMENT.get(name, FLOPS_PER_ELEMENT.get(base_name, 1)))


def _is_causal(name: str, op: RecordedOp) -> bool:
    if "backward" in name:
        return any(value is True for value in op.args)
    position = 4 if "efficient" not in name else 6
    return len(op.args) > position and op.args[position] is True


def _traffic(name: str, op: RecordedOp) -> Tuple[float, float]:
    """Return bytes read and written without a cache. A gather reads the rows it returns, not its whole table."""
    written = float(sum(spec[3] for spec in op.outputs))
    sizes = [spec[3] for spec in op.inputs]
    if name in ("embedding", "index", "index_select", "gather", "_unsafe_index", "_embedding_bag") and sizes:
        return written + sum(sizes[1:]), written
    if name in ("copy_", "_foreach_copy_"):
        return float(sum(sizes[len(sizes) // 2 :])), written
    if name in ("zero_", "fill_", "_foreach_zero_", "uniform_", "normal_", "bernoulli_"):
        return 0.0, written
    if name in ("index_put_", "_index_put_impl_", "index_add_", "scatter_", "scatter_add_") and sizes:
        touched = float(sum(sizes[1:]))
        return 2 * touched, touched
    if name in ("spmm", "sddmm"):
        # Each entry reads a row of each dense matrix.
        entries = math.prod(op.inputs[-2][0]) if name == "spmm" else math.prod(op.outputs[0][0])
        dense = op.inputs[-1:] if name == "spmm" else op.inputs[-2:]
        rows = sum(entries * spec[3] / max(spec[0][0], 1) for spec in dense)
        return float(sum(sizes[: -len(dense)]) + rows), written
    return float(sum(sizes)), written


def _kernels(name: str, op: RecordedOp) -> int:
    """Return the device kernels that one call launches. A foreach op packs about 100 tensors in each."""
    if name.startswith(("_foreach", "_fused_adam", "_fused_sgd")):
        return max(1, math.ceil(len(op.outputs) / 100))
    return 2 if name == "convolution_backward" else 1


def _tensor_specs(specs: Sequence[Tuple[Any, ...]]) -> List[Dict[str, Any]]:
    """Return tensors as ``TensorSpec`` fields. Of lists of hundreds of parameters, these are the first."""
    return [{"shape": list(spec[0]), "dtype": str(spec[1]).rpartition(".")[2]} for spec in specs[:8]]


def graph_document(session: TraceSession, recorder: Recorder, window: TraceWindow, stage: str = "") -> Dict[str, Any]:
    """Return one window as the fields of ``OpGraph``. ``stage`` overrides the stages of its ops."""
    cache: Dict[Any, Dict[str, Any]] = {}
    ops: List[Dict[str, Any]] = []
    for op in window.ops:
        signature = (
            op.func if op.extra is None else id(op),
            tuple(spec[:2] + spec[3:] for spec in op.inputs),
            tuple(spec[:2] + spec[3:] for spec in op.outputs),
            repr(op.args),
        )
        document = cache.get(signature)
        if document is None:
            document = cache[signature] = {
                **_describe_op(op),
                "inputs": _tensor_specs(op.inputs),
                "outputs": _tensor_specs(op.outputs),
            }
            if document["kind"] == "communication" and not document["dims"]:
                document["dims"] = distributed.collective_dims(op, session)
        sources = [position - window.first for position in op.sources if position >= window.first]
        ops.append({**document, "stage": stage or op.stage, "sources": sources})
        if op.stage == "optimizer" and document["kind"] in ("elementwise", "reduction"):
            ops[-1]["kind"] = "optimizer"
    return {
        "ops": ops,
        "events": _events(recorder, window),
        "parameters": window.parameters,
        "parameter_bytes": window.parameter_bytes,
        "device_type": session.policy,
        "source": "torch",
        "fallbacks": dict(session.fallbacks),
    }


def _events(recorder: Recorder, window: TraceWindow) -> List[Dict[str, Any]]:
    freed_at = {serial: position for position, serial, size in window.events if size < 0}
    stages = [raw.stage for raw in window.ops]
    events = [(0, serial, size, recorder.category.get(serial, "other")) for serial, size in window.held]
    for position, serial, size in window.events:
        category = recorder.category.get(serial)
        if category is None:
            category = _guess(recorder.made_in.get(serial, ""), freed_at.get(serial), window.first, stages)
        events.append((max(0, position - window.first), serial, size, category))
    _add_in_place(events, window)
    return [{"op": op, "storage": serial, "size_bytes": size, "category": c} for op, serial, size, c in events]


def _add_in_place(events: List[Any], window: TraceWindow) -> None:
    """Move the release of a gradient's old sum before the allocation of the new one."""
    # Autograd adds a second gradient of the same tensor into the memory of the first, unless that is a view, such as
    # the transposed gradient of a product's weights (can_accumulate_inplace in PyTorch's input_buffer.cpp). For tensors
    # without data it allocates a new sum and drops the old one at once. Such an addition is recognized by that.
    sums = {
        position
        for position, op in enumerate(window.ops)
        if (op.stage, str(op.func)) == ("backward", "aten.add.Tensor")
    } - {view - window.first for view in window.to_views}
    for allocation, (op_position, _, size, _) in enumerate(events):
        if op_position not in sums or size <= 0:
            continue
        for release in range(allocation + 1, len(events)):
            release_position, serial, release_size, category = events[release]
            if release_position > op_position + 1:
                break
            if release_position == op_position + 1 and release_size == -size:
                del events[release]
                events.insert(allocation, (op_position, serial, release_size, category))
                sums.discard(op_position)
                break


def _guess(made_stage: str, freed_at: Any, first: int, stages: List[str]) -> str:
    """Call memory an activation if forward allocates it and a later stage frees it, else temporary."""
    if made_stage not in ("forward", "evaluation"):
        return "temporary"
    if freed_at is None:
        return "activation"
    freeing_stage = stages[min(max(freed_at - first, 0), len(stages) - 1)] if stages else made_stage
    return "temporary" if freeing_stage == made_stage else "activation"
