"""Mamba on a tape: projections, a short convolution and the selective scan (Gu and Dao 2023, algorithm 2).

The kernels are those of the packages causal-conv1d and mamba-ssm.
"""

from leadline.core.graph import OpKind, StorageCategory
from leadline.graphs.hf_config.attention_ops import split_last_axis
from leadline.graphs.hf_config.modules import Linear, ModelBuilder, Norm
from leadline.graphs.hf_config.shape import SelectiveScanShape
from leadline.graphs.hf_config.state_space import hold_states, take_states
from leadline.graphs.hf_config.tape import TapeTensor

STATE_FLOPS, CHANNEL_FLOPS = 8, 8
"""Operations of the scan for each number of the state (decay, input, update, output), and for each channel (gate)."""
SCANNED = 2048
"""Tokens between the states that the scan saves for its backward pass (``kChunkSize`` of mamba-ssm)."""


class SelectiveScanBlock:
    """A Mamba mixer: (b, s, hidden) to (b, s, hidden)."""

    def __init__(self, builder: ModelBuilder, hidden: int, shape: SelectiveScanShape) -> None:
        self.builder, self.shape = builder, shape
        inner, rank, state = shape.inner, shape.rank, shape.state
        self.project = Linear(builder, 2 * inner, hidden, bias=shape.bias, name="in_proj")
        self.kernel = builder.weight(inner, 1, shape.kernel)
        self.kernel_bias = builder.weight(inner) if shape.kernel_bias else None
        self.select = Linear(builder, rank + 2 * state, inner, bias=False, name="x_proj")
        self.step = Linear(builder, inner, rank, name="dt_proj")
        self.decay, self.skip = builder.weight(inner, state), builder.weight(inner)
        self.norms = [Norm(builder, "rms", size) for size in (rank, state, state)] if shape.normed else []
        self.out = Linear(builder, hidden, inner, bias=shape.bias, name="out_proj")

    def __call__(self, hidden: TapeTensor) -> TapeTensor:
        """Return the mixed tokens of ``hidden``. A step of a generation updates the states of the cache."""
        builder, shape = self.builder, self.shape
        tokens, gate = split_last_axis(builder.tape, self.project(hidden), (shape.inner, shape.inner))
        states = take_states(builder) if builder.past else []
        tokens = self._convolve(tokens, states)
        parts = split_last_axis(builder.tape, self.select(tokens), (shape.rank, shape.state, shape.state))
        if self.norms:
            parts = [norm(part) for norm, part in zip(self.norms, parts, strict=True)]
        rank, *projections = parts
        mixed = self._scan([tokens, self.step(rank), gate, *projections], states)
        if builder.caching and not states and not builder.tape.training:
            sizes = (shape.inner * shape.kernel, tokens.dtype), (shape.inner * shape.state, "float32")
            hold_states(builder, hidden.shape[0], sizes)
        return self.out(mixed)

    def _convolve(self, tokens: TapeTensor, states: list[TapeTensor]) -> TapeTensor:
        tape = self.builder.tape
        weights = [self.kernel, *([] if self.kernel_bias is None else [self.kernel_bias])]
        result = tape.new(tokens.shape, tokens.dtype)
        name, held = ("causal_conv1d_update", states[:1]) if states else ("causal_conv1d_fwd", [])
        flops = (2.0 * self.shape.kernel + 5) * tokens.elements
        tape.op(name, OpKind.ELEMENTWISE, [tokens, *weights, *held], [result, *held], flops=flops)
        return self._attach("causal_conv1d_bwd", result, [tokens, *weights], 2 * flops)

    def _scan(self, inputs: list[TapeTensor], states: list[TapeTensor]) -> TapeTensor:
        tape, tokens, shape = self.builder.tape, inputs[0], self.shape
        result = tape.new(tokens.shape, tokens.dtype)
        flops = float((STATE_FLOPS * shape.state + CHANNEL_FLOPS) * tokens.elements)
        inputs = [*inputs, self.decay, self.skip]
        if states:
            tape.op(
                "selective_state_update", OpKind.ELEMENTWISE, [*inputs, states[1]], [result, states[1]], flops=flops
            )
            return result
        batch, sequence, _ = tokens.shape
        kept = tape.new((batch, shape.inner, -(-sequence // SCANNED), 2 * shape.state), "float32")
        ungated = tape.new(tokens.shape, tokens.dtype)
        tape.op("selective_scan_fwd", OpKind.ELEMENTWISE, inputs, [result, ungated, kept], flops=flops)
        return self._attach("selective_scan_bwd", result, inputs, 3 * flops, [ungated, kept])

    def _attach(
        self,
        name: str,
        result: TapeTensor,
        inputs: list[TapeTensor],
        flops: float,
        saved: list[TapeTensor] | None = None,
    ) -> TapeTensor:
        """Attach a backward pass of one kernel, which makes the gradients of all ``inputs``."""
        tape, held = self.builder.tape, [*inputs, *(saved or [])]

        def backward(gradient: TapeTensor) -> None:
            slots = [(tensor, StorageCategory.GRADIENT if tape.is_weight(tensor) else None) for tensor in inputs]
            gradients = [tape.new(tensor.shape, tensor.dtype, kind) for tensor, kind in slots]
            tape.op(name, OpKind.ELEMENTWISE, [gradient, *held], gradients, flops=flops)
            for tensor, back in zip(inputs, gradients, strict=True):
                tape.send(tensor.slot, back)

        return tape.node(result, backward, *inputs)
