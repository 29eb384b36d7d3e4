"""Mamba-2 on a tape: a projection, a short convolution, the chunked scan of state-space duality, and a gated norm.

The kernels are those of the package mamba-ssm, which transformers uses where it is installed (Dao and Gu 2024,
"Transformers are SSMs", sections 6 and 7). In training they save the projected input, and compute the rest again
backward.
"""

from collections.abc import Sequence

from leadline.core.graph import OpKind, StorageCategory
from leadline.graphs.hf_config import ops
from leadline.graphs.hf_config.generation import STATE_WINDOW, CachedTensor
from leadline.graphs.hf_config.modules import Linear, ModelBuilder
from leadline.graphs.hf_config.shape import StateSpaceShape
from leadline.graphs.hf_config.tape import TapeTensor

GRADIENT = StorageCategory.GRADIENT


class StateSpaceBlock:
    """A Mamba-2 mixer: (b, s, hidden) to (b, s, hidden)."""

    def __init__(self, builder: ModelBuilder, hidden: int, shape: StateSpaceShape) -> None:
        self.builder, self.shape = builder, shape
        self.project = Linear(builder, shape.projected, hidden, bias=shape.bias, name="in_proj")
        self.kernel = builder.weight(shape.convolved, 1, shape.kernel)
        self.kernel_bias = builder.weight(shape.convolved) if shape.kernel_bias else None
        self.steps, self.decay, self.skip = (builder.weight(shape.heads) for _ in range(3))
        self.norm = builder.weight(shape.inner)
        self.out = Linear(builder, hidden, shape.inner, bias=shape.bias, name="out_proj")

    def __call__(self, hidden: TapeTensor) -> TapeTensor:
        """Return the mixed tokens of ``hidden``. A step of a generation updates the states of the cache."""
        projected = self.project(hidden)
        if self.builder.tape.training:
            return self.out(self._train(projected))
        mixed = self._update(projected) if self.builder.past else self._prefill(projected)
        return self.out(self._gate(mixed, projected))

    def _train(self, projected: TapeTensor) -> TapeTensor:
        """Scan and gate in one autograd function."""
        tape, weights = self.builder.tape, self._weights()
        batch, sequence, _ = projected.shape
        convolved = self._convolve(projected)
        mixed = self._scan(convolved)
        del convolved
        normal = tape.new(mixed.shape, mixed.dtype)
        scale = tape.new((batch * sequence, self.shape.groups), "float32")
        tape.op("layer_norm_fwd", OpKind.NORM, [mixed, mixed, self.norm], [normal, scale], flops=13.0 * mixed.elements)
        slot, shape, dtype = projected.slot, projected.shape, projected.dtype

        def backward(gradient: TapeTensor) -> None:
            again = self._convolve(projected)
            back = tape.new(shape, dtype)
            ungated = tape.new(mixed.shape, dtype)
            tape.op("layer_norm_bwd", OpKind.NORM, [gradient, mixed, mixed, scale, self.norm], [ungated, back],
                    flops=25.0 * mixed.elements, written=2.0 * ungated.bytes)  # fmt: skip
            self._scan_backward(again, ungated)
            tape.op("causal_conv1d_bwd", OpKind.ELEMENTWISE, [again, again, self.kernel], [again],
                    flops=4.0 * self.shape.kernel * again.elements)  # fmt: skip
            del again, ungated
            for weight in weights:
                if weight.slot is not None:
                    tape.send(weight.slot, tape.new(weight.shape, weight.dtype, GRADIENT))
            tape.send(slot, back)

        return tape.node(normal, backward, projected, *weights)

    def _weights(self) -> list[TapeTensor]:
        bias = [] if self.kernel_bias is None else [self.kernel_bias]
        return [self.kernel, *bias, self.steps, self.decay, self.skip, self.norm]

    def _convolve(self, projected: TapeTensor) -> TapeTensor:
        """Convolve each channel over the last tokens: (b, s, inner + 2 · groups · state)."""
        tape, shape = self.builder.tape, self.shape
        result = tape.new((*projected.shape[:2], shape.convolved), projected.dtype)
        tape.op("causal_conv1d_fwd", OpKind.ELEMENTWISE, [result, self.kernel], [result],
                flops=(2.0 * shape.kernel + 5) * result.elements)  # fmt: skip
        return result

    def _scan(self, convolved: TapeTensor) -> TapeTensor:
        """Return (b, s, inner): products within chunks of tokens, and of each chunk with the state before it."""
        tape, shape = self.builder.tape, self.shape
        states, within = self._chunk_states(convolved)
        chunk, chunks = shape.chunks(convolved.shape[1])
        result = tape.new((*convolved.shape[:2], shape.inner), convolved.dtype)
        # A causal kernel skips the half of each chunk that lies after a token.
        self._product([within, convolved, states], [result], shape.heads * chunks, chunk, shape.head_dim,
                      chunk // 2 + shape.state)  # fmt: skip
        return result

    def _chunk_states(self, convolved: TapeTensor) -> tuple[TapeTensor, TapeTensor]:
        """Return the state before each chunk, and the products of its outputs' and inputs' projections."""
        tape, shape = self.builder.tape, self.shape
        batch, sequence, _ = convolved.shape
        chunk, chunks = shape.chunks(sequence)
        steps = [tape.new((batch, shape.heads, sequence), "float32") for _ in range(2)]
        tape.op("chunk_cumsum_fwd", OpKind.ELEMENTWISE, [steps[0], self.steps, self.decay], steps,
                flops=12.0 * steps[0].elements)  # fmt: skip
        states = tape.new((batch, chunks, shape.heads, shape.head_dim, shape.state), "float32")
        self._product([convolved, *steps], [states], shape.heads * chunks, shape.head_dim, shape.state, chunk)
        tape.op("state_passing_fwd", OpKind.ELEMENTWISE, [states], [states], flops=2.0 * states.elements)
        within = tape.new((batch, chunks, shape.groups, chunk, chunk), "float32")
        self._product([convolved], [within], shape.groups * chunks, chunk, chunk, shape.state)
        return states, within

    def _scan_backward(self, convolved: TapeTensor, gradient: TapeTensor) -> None:
        """Record the scan's gradients: its states once more, and two products for each product forward."""
        tape, shape = self.builder.tape, self.shape
        chunk, chunks = shape.chunks(convolved.shape[1])
        states, within = self._chunk_states(convolved)
        heads, groups = shape.heads * chunks, shape.groups * chunks
        wide, narrow = shape.state, shape.head_dim
        self._product([gradient, convolved], [states], heads, narrow, wide, chunk)
        tape.op("state_passing_bwd", OpKind.ELEMENTWISE, [states, states], [states], flops=4.0 * states.elements)
        self._product([within, gradient, states], [gradient], heads, chunk, narrow, chunk // 2 + wide)
        for _ in range(2):  # of the inputs' and the outputs' projections by the states
            self._product([gradient, states], [convolved], heads, chunk, wide, narrow)
        self._product([gradient, convolved], [within], heads, chunk, chunk // 2, narrow)
        for _ in range(2):  # of both projections by the products within chunks
            self._product([within, convolved], [convolved], groups, chunk, wide, chunk)

    def _product(self, inputs: list[TapeTensor], outputs: list[TapeTensor], b: int, m: int, n: int, k: int) -> None:
        """Record products of activations for each sample: b times (m, k) · (k, n)."""
        b *= inputs[0].shape[0]
        self.builder.tape.op("bmm", OpKind.GEMM, inputs, outputs, flops=2.0 * b * m * n * k,
                             dims={"b": b, "m": m, "n": n, "k": k}, dtype=outputs[0].dtype)  # fmt: skip

    def _prefill(self, projected: TapeTensor) -> TapeTensor:
        """Scan a whole sequence, and leave the states of its end in the cache."""
        convolved = self._convolve(projected)
        if self.builder.caching:
            size, states = self.shape.convolved * self.shape.kernel, self.shape.inner * self.shape.state
            hold_states(self.builder, projected.shape[0], ((size, projected.dtype), (states, "float32")))
        return self._scan(convolved)

    def _update(self, projected: TapeTensor) -> TapeTensor:
        """Update both states with one token each, in place."""
        tape, shape = self.builder.tape, self.shape
        last, state = take_states(self.builder)
        convolved = tape.new((*projected.shape[:2], shape.convolved), projected.dtype)
        tape.op("causal_conv1d_update", OpKind.ELEMENTWISE, [projected, last, self.kernel],
                [convolved, last], flops=2.0 * shape.kernel * convolved.elements)  # fmt: skip
        mixed = tape.new((*projected.shape[:2], shape.inner), projected.dtype)
        tape.op("selective_state_update", OpKind.ELEMENTWISE, [convolved, state, self.steps, self.decay],
                [mixed, state], flops=6.0 * state.elements)  # fmt: skip
        return mixed

    def _gate(self, mixed: TapeTensor, projected: TapeTensor) -> TapeTensor:
        """Multiply by the gate and normalize, op by op, as transformers does outside training."""
        tape = self.builder.tape
        gate = tape.compute("_to_copy", OpKind.COPY, [mixed], mixed.shape, "float32")
        gated = ops.multiply(tape, tape.cast(mixed, "float32"), ops.activation(tape, gate, "silu"))
        normal = ops.unfused_norm(tape, gated, None, centered=False)
        return ops.multiply(tape, tape.cast(normal, projected.dtype), self.norm)


def hold_states(builder: ModelBuilder, batch: int, sizes: Sequence[tuple[int, str]]) -> None:
    """Leave states of so many numbers for each sample, and of these types, in the cache."""
    for size, dtype in sizes:
        state = builder.tape.new((batch, 1, 1, size), dtype, StorageCategory.KV_CACHE)
        builder.tape.op("copy_", OpKind.COPY, [state], [state])
        builder.cache.append(CachedTensor(state, STATE_WINDOW))


def take_states(builder: ModelBuilder) -> list[TapeTensor]:
    """Return a layer's two states of the cache, which keeps them."""
    states = [builder.past.pop(0) for _ in range(2)]
    builder.cache += states
    return [state.tensor for state in states]
