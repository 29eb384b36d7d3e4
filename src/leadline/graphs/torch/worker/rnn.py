"""Recurrent layers as one op in each direction, as vendor libraries run them, in place of thousands of small ones."""

from typing import Any, Dict, List, Sequence

import torch
from torch._subclasses.fake_tensor import FakeTensor

from leadline.graphs.torch.worker import fake_tensors
from leadline.graphs.torch.worker.session import TraceSession
from leadline.graphs.torch.worker.windows import RecordedOp

GATES = {"lstm": 4, "gru": 3, "rnn_tanh": 1, "rnn_relu": 1}
PAGE_BYTES = 4096
INTERNAL_SIZES = ("rows", "gates", "kept", "cast", "batch_first_copy")
"""Entries of a layer's sizes that are not dims of its op."""


def install_recurrent_layers(session: TraceSession) -> None:
    """Replace the recurrent layers' entry points for tensors without data."""
    import torch.nn.modules.rnn as layers

    # cuDNN would store the weights' data side by side, but there is no data.
    layers.RNNBase.flatten_parameters = lambda _: None
    for name in GATES:
        replaced = _replacement(session, name, getattr(torch._VF, name))
        setattr(torch._VF, name, replaced)
        setattr(torch, name, replaced)
    for mode, name in (("RNN_TANH", "rnn_tanh"), ("RNN_RELU", "rnn_relu")):
        layers._rnn_impls[mode] = getattr(torch._VF, name)


def _replacement(session: TraceSession, name: str, original: Any) -> Any:
    def layer(*args: Any, **kwargs: Any) -> Any:
        packed = isinstance(args[3], (list, tuple))
        data, states, weights = (args[0], args[2], args[3]) if packed else (args[0], args[1], args[2])
        if not any(isinstance(tensor, FakeTensor) for tensor in (data, *weights)):
            return _calculate(original, data, args, kwargs)
        _, layers, _, train, bidirectional = args[4:9] if packed else args[3:8]
        batch_first = False if packed else (len(args) > 8 and bool(args[8]))
        hidden, cell = states if name == "lstm" else (states, None)
        shape = _sizes(data, weights, hidden, layers, bidirectional, batch_first, args[1] if packed else None)
        shape["gates"] = GATES[name]
        if session.policy == "cpu" and name == "lstm" and not packed:
            shape["cast"] = int(torch.is_autocast_enabled("cpu") and data.dtype == torch.float32)
            shape["batch_first_copy"] = int(batch_first and data.dim() == 3)
            shape["kept"] = _onednn_saved_blocks(shape, data, weights)
        flat = [data, hidden] + ([cell] if cell is not None else []) + list(weights)
        results = tuple(_RecurrentLayer.apply(session, name, shape, bool(train), cell is not None, *flat))
        session.recorder.give_results(results, original, args, kwargs)
        return results

    return layer


def _calculate(original: Any, data: Any, args: Any, kwargs: Any) -> Any:
    """Run a layer on values by its single products, with the gradient of its input, as cuDNN always calculates it."""
    if torch.is_grad_enabled() and data.is_floating_point() and not data.requires_grad:
        args = (data.detach().requires_grad_(), *args[1:])
    with torch.backends.mkldnn.flags(enabled=False):
        return original(*args, **kwargs)


def _sizes(
    data: Any, weights: Any, hidden: Any, layers: int, bidirectional: bool, batch_first: bool, batch_sizes: Any
) -> Dict[str, Any]:
    if batch_sizes is not None:
        sequence, batch, total = len(batch_sizes), int(batch_sizes[0]), data.shape[0]
    elif data.dim() == 2:
        sequence, batch, total = data.shape[0], 1, data.shape[0]
    else:
        sequence, batch = (data.shape[1], data.shape[0]) if batch_first else (data.shape[0], data.shape[1])
        total = sequence * batch
    return {
        "batch": batch,
        "seq": sequence,
        "input": data.shape[-1],
        "hidden": weights[1].shape[1] if hidden is None else hidden.shape[-1],
        "layers": int(layers),
        "directions": 2 if bidirectional else 1,
        "rows": total,
    }


def _flops(shape: Dict[str, int]) -> float:
    """Return the floating-point operations of all gates of all layers over the sequence."""
    width, total = shape["input"], 0.0
    for _ in range(shape["layers"]):
        gates = 2.0 * shape["rows"] * shape["gates"] * shape["hidden"]
        total += gates * (width + shape["hidden"]) * shape["directions"]
        width = shape["hidden"] * shape["directions"]
    return total


def _onednn_saved_blocks(shape: Dict[str, Any], data: Any, weights: Any) -> List[int]:
    """Return the blocks, in bytes, that an LSTM's forward pass on a CPU keeps for backward, in their order."""
    # oneDNN runs each layer and direction by itself. It keeps their workspace and results, and the casts of autocast.
    rows, hidden, directions = shape["rows"], shape["hidden"], shape["directions"]
    element = 2 if shape["cast"] else data.element_size()
    blocks = [element * (rows * shape["input"] + sum(weight.numel() for weight in weights))] if shape["cast"] else []
    width = shape["input"]
    for _ in range(shape["layers"]):
        blocks += [_workspace_bytes(shape, width, element), rows * hidden * element] * directions
        blocks += [directions * rows * hidden * element] * (directions > 1)
        width = directions * hidden
    return blocks if shape["batch_first_copy"] else blocks[:-1]  # the last is the result


def _workspace(session: TraceSession, shape: Dict[str, Any], result: Any, *, keeps: bool) -> List[Any]:
    """Return the memory that oneDNN keeps, or track the copy with time first if nothing is kept."""
    # PyTorch's own result is a view of that copy, which its readers make contiguous.
    if "kept" not in shape:
        return []
    if keeps:
        kept = [fake_tensors.empty_tensor((size,), torch.uint8, result.device) for size in shape["kept"]]
        for tensor in kept:
            session.recorder.track(tensor)
        return kept
    if shape["batch_first_copy"]:
        result.__dict__["_turned"] = fake_tensors.empty_like(result, result.device)
        session.recorder.track(result.__dict__["_turned"])
    return []


def _workspace_bytes(shape: Dict[str, int], width: int, element: int) -> int:
    """Return oneDNN's workspace for one layer in one direction, as PyTorch 2.13 allocates it on x86-64."""
    # Gates, hidden states, and the states of layer, step and cell with their gradients start on pages of their own
    # (rnn_utils in oneDNN). This matches the allocations of 50 shapes in float32 and bfloat16 to the byte.
    steps, batch, hidden = shape["seq"], shape["batch"], shape["hidden"]
    widest = max(width, hidden)
    parts = [
        steps * batch * _row(4 * hidden, element),
        steps * batch * _row(hidden, element),
        2 * (steps + 1) * batch * _row(widest, element),
        2 * (steps + 1) * batch * hidden * element,
        2 * (steps + 1) * batch * hidden * 4,
        *[2 * (steps + 1) * batch * _row(widest, 4)] * 2,
    ]
    return sum(-(-part // PAGE_BYTES) * PAGE_BYTES for part in parts)


def _row(width: int, element: int) -> int:
    """Return the bytes of a row: whole cache lines, and one more where rows would compete for the same lines."""
    line = 64 // element
    width = -(-width // line) * line
    return element * (width + line if width % 256 == 0 else width)


class _RecurrentLayer(torch.autograd.Function):
    """All layers and steps of one recurrent module."""

    @staticmethod
    def forward(
        ctx: Any, session: TraceSession, name: str, shape: Any, train: bool, has_cell: bool, *tensors: Any
    ) -> Any:
        data, hidden = tensors[0], tensors[1]
        device = fake_tensors.true_device(data)
        ctx.session, ctx.name, ctx.shape, ctx.device = session, name, shape, device
        ctx.save_for_backward(*tensors)
        width = hidden.shape[-1] * shape["directions"]
        dtype = torch.bfloat16 if shape.get("cast") else data.dtype
        outs = [fake_tensors.empty_tensor((*data.shape[:-1], width), dtype, device)]
        outs += [fake_tensors.empty_like(state, device) for state in tensors[1 : 2 + has_cell]]
        states = shape["rows"] * shape["hidden"] * (shape["gates"] + 1) * shape["layers"] * shape["directions"]
        keeps = train and any(ctx.needs_input_grad)
        ctx.reserve = fake_tensors.empty_tensor((states if keeps else 0,), data.dtype, device)
        ctx.workspace = _workspace(session, shape, outs[0], keeps=keeps)
        _record(ctx, ctx.name, _flops(shape), tensors, [*outs, ctx.reserve])
        return tuple(outs)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        tensors = ctx.saved_tensors
        needed = ctx.needs_input_grad[5:]
        outs = [fake_tensors.empty_like(t, ctx.device) if need else None for t, need in zip(tensors, needed)]  # noqa: B905 - Python 3.9 has no strict
        inputs = [g for g in grads if g is not None] + list(tensors) + [ctx.reserve]
        outputs = [t for t in outs if t is not None]
        _record(ctx, ctx.name + "_backward", 2 * _flops(ctx.shape), inputs, outputs)
        ctx.reserve = ctx.workspace = None
        ctx.session.recorder.give_zeros(outputs)
        return (None, None, None, None, None, *outs)


def _record(ctx: Any, name: str, flops: float, input_tensors: Sequence[Any], output_tensors: Sequence[Any]) -> None:
    recorder, shape = ctx.session.recorder, ctx.shape
    if ctx.device.type != recorder.policy_type:
        return

    def describe(tensor: Any) -> Any:
        if tensor is not ctx.reserve or not ctx.workspace:
            return recorder._spec(tensor)[0]
        # oneDNN's blocks hold what the reserve stands for.
        storage = recorder._spec(ctx.workspace[0])[0][2]
        return tuple(tensor.shape), tensor.dtype, storage, tensor.numel() * tensor.element_size()

    fake_tensors.NESTING[0] += 1
    try:
        outputs = tuple(map(describe, output_tensors))
        inputs = tuple(map(describe, input_tensors))
        sources = tuple(sorted({recorder.producer[spec[2]] for spec in inputs if spec[2] in recorder.producer}))
    finally:
        fake_tensors.NESTING[0] -= 1
    dims = {key: value for key, value in shape.items() if key not in INTERNAL_SIZES}
    extra = {"kind": "rnn", "dims": dims, "flops": flops, "kernels": shape["layers"] * shape["directions"]}
    recorder.append(RecordedOp("aten." + name, recorder.stage, inputs, outputs, (), sources, extra))
