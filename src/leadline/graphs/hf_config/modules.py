"""The modules of a transformer without data: each makes its weights once and runs on the tape when it is called."""

from dataclasses import dataclass, field

from leadline.core.graph import StorageCategory
from leadline.core.workload import Adapters, Quantization
from leadline.graphs.hf_config import attention_ops, ops
from leadline.graphs.hf_config.adapters import LowRankAdapter, QuantizedWeight
from leadline.graphs.hf_config.generation import CachedTensor, append_tokens, write_in_place, write_prompt
from leadline.graphs.hf_config.shape import AttentionShape, FeedForwardShape
from leadline.graphs.hf_config.tape import Tape, TapeTensor


@dataclass(slots=True)
class ModelBuilder:
    """Where modules get their weights and record their ops.

    ``dtype`` is that of the weights; ``cuda`` chooses the attention kernel. In inference ``cache`` keeps the keys and
    values of all causal layers, as a causal model does by default; in training it does too, until the loss is known,
    but not under checkpointing. ``past`` is the cache that a decode step finds, by layer: the step takes it from there.
    A ``paged`` one is written into blocks. ``inputs`` and the latest written-out ``scores`` are held as their owners
    hold them. ``last_only`` scores the last token alone, as generation does. With ``adapters`` all other weights are
    frozen, and those of adapted layers stored as ``quantization`` says.
    """

    tape: Tape
    dtype: str
    cuda: bool = True
    checkpointing: bool = False
    caching: bool = True
    last_only: bool = False
    paged: bool = False
    past: list[CachedTensor] = field(default_factory=list)
    cache: list[CachedTensor] = field(default_factory=list)
    inputs: list[TapeTensor] = field(default_factory=list)
    scores: TapeTensor | None = None
    adapters: Adapters | None = None
    quantization: Quantization | None = None
    packed: list[QuantizedWeight] = field(default_factory=list)

    def weight(self, *shape: int, trained: bool = True, saved: bool = False) -> TapeTensor:
        """Make one weight; beside adapters it is frozen, or, if it is ``saved`` with them, a trained copy of it."""
        if self.adapters is None:
            return self.tape.parameter(*shape, dtype=self.dtype, trained=trained)
        weight = self.tape.parameter(*shape, dtype=self.dtype, trained=False)
        return self.tape.parameter(*shape, dtype=self.dtype) if saved else weight

    @property
    def saves(self) -> bool:
        """Whether embedding and output layer are trained beside adapters."""
        return self.adapters is not None and self.adapters.embeddings

    def adapter(self, n: int, k: int) -> LowRankAdapter | None:
        """Make what is trained beside a frozen (n, k) weight, if anything is."""
        return None if self.adapters is None else LowRankAdapter(self.tape, self.adapters.rank, n, k)

    def pack(self, n: int, k: int) -> QuantizedWeight | None:
        """Make a frozen (n, k) weight in few bits, if it is stored so."""
        if self.quantization is None:
            return None
        self.packed.append(QuantizedWeight(self.tape, self.quantization, n, k))
        return self.packed[-1]

    def given(self, shape: tuple[int, ...], dtype: str) -> TapeTensor:
        """Make an input, held until the step is done with."""
        self.inputs.append(self.tape.new(shape, dtype, StorageCategory.INPUT))
        return self.inputs[-1]

    def keep(self, *made: TapeTensor, window: int | None = None) -> tuple[TapeTensor, ...]:
        """Return keys and values (b, heads, tokens, d) as the cache keeps them, joined to what it held in one type."""
        if not self.caching:
            return made
        dtype = "float32" if any(one.dtype == "float32" for one in made) else made[0].dtype
        if self.past and self.paged:
            joined = tuple(write_in_place(self.tape, self.past.pop(0), one) for one in made)
        elif self.past:
            joined = tuple(append_tokens(self.tape, self.past.pop(0), one, dtype) for one in made)
        elif self.paged:
            joined = tuple(write_prompt(self.tape, one, dtype) for one in made)
        else:
            held = StorageCategory.ACTIVATION if self.tape.training else StorageCategory.KV_CACHE
            joined = tuple(attention_ops.copy_tensor(self.tape, one, "cat", dtype, held) for one in made)
        self.cache += [CachedTensor(one, window) for one in joined]
        return joined

    def let_go(self) -> None:
        """Give back what a model's answer holds beside the loss."""
        self.cache.clear()
        self.scores = None


class Linear:
    """A product with an (n, k) weight, or with one such weight for each expert.

    A ``plain`` one, and that of experts, is no layer to which adapters are added or which is quantized: experts are
    weights of their block. ``saved`` is said of an output layer that may be trained whole beside adapters.
    """

    __slots__ = ("adapter", "bias", "packed", "tape", "weight")

    def __init__(
        self, build: ModelBuilder, n: int, k: int, *, bias: bool = True, experts: int = 0, plain: bool = False,
        saved: bool = False,
    ) -> None:  # fmt: skip
        self.tape = build.tape
        layer = not (experts or plain or saved)
        shape = (experts, n, k) if experts else (n, k)
        self.packed = build.pack(n, k) if layer else None
        self.weight = build.weight(*shape, saved=saved and build.saves) if self.packed is None else None
        self.bias = build.weight(*shape[:-1], saved=saved and build.saves) if bias else None
        self.adapter = build.adapter(n, k) if layer else None

    def __call__(self, source: TapeTensor) -> TapeTensor:
        """Return (…, n) of (…, k)."""
        if self.packed is not None:
            result = self.packed.product(source, self.bias)
        elif self.weight is not None:
            result = ops.linear(self.tape, source, self.weight, self.bias, cast=len(self.weight.shape) == 2)
        return result if self.adapter is None else self.adapter(source, result, widened=self.packed is None)


class Norm:
    """A norm over the last axis; its weight may have its own shape.

    ``layer`` and ``rms`` are what they say, ``rms-wide`` multiplies its weight in float32, ``unbiased`` and ``bare``
    are layer norms without a bias or any weight, ``write_in_place`` and ``written-biased`` layer norms computed op by op.
    """

    __slots__ = ("bias", "kind", "tape", "weight")

    def __init__(self, build: ModelBuilder, kind: str, *shape: int) -> None:
        self.tape, self.kind = build.tape, kind
        self.weight = None if kind.startswith("bare") else build.weight(*shape)
        self.bias = build.weight(*shape) if kind in ("layer", "written-biased") else None

    def __call__(self, source: TapeTensor) -> TapeTensor:
        """Return ``source`` normalised."""
        if self.kind in ("rms", "bare-rms"):
            return ops.rms_norm(self.tape, source, self.weight)
        if self.kind == "rms-wide":
            return ops.rms_norm(self.tape, source, self.weight, wide=True)
        if self.kind.startswith("written") and self.weight is not None:
            return ops.unfused_layer_norm(self.tape, source, self.weight, self.bias)
        return ops.layer_norm(self.tape, source, self.weight, self.bias)


class AttentionBlock:
    """Attention to the tokens themselves, or to a ``memory``."""

    __slots__ = ("build", "key", "key_norm", "out", "qkv", "query", "query_norm", "shape", "sinks", "value")

    def __init__(self, build: ModelBuilder, shape: AttentionShape) -> None:
        self.build, self.shape = build, shape
        hidden, q, kv = shape.hidden, shape.query_width, shape.key_width
        if shape.fused:
            self.qkv = Linear(build, q + 2 * kv, hidden, bias=shape.query_bias)
        else:
            self.query = Linear(build, q, hidden, bias=shape.query_bias)
            self.key = Linear(build, kv, hidden, bias=shape.key_bias)
            self.value = Linear(build, kv, hidden, bias=shape.query_bias)
        self.out = Linear(build, hidden, q, bias=shape.out_bias)
        self.sinks = build.weight(shape.heads) if shape.sinks else None
        self.query_norm = _head_norm(build, shape, shape.heads)
        self.key_norm = _head_norm(build, shape, shape.kv_heads)

    def __call__(
        self,
        hidden: TapeTensor,
        angles: TapeTensor | None = None,
        memory: TapeTensor | None = None,
        bias: TapeTensor | None = None,
    ) -> TapeTensor:
        """Return what each token of ``hidden`` (batch, sequence, width) gathered."""
        shape, tape = self.shape, self.build.tape
        batch, sequence, _ = hidden.shape
        query, key, value = self._project(hidden, hidden if memory is None else memory)
        keys = key.shape[1]
        if self.query_norm is not None and self.key_norm is not None:
            query = self._normalise(self.query_norm, query, shape.heads)
            key = self._normalise(self.key_norm, key, shape.kv_heads)
        query = query.view(batch, shape.heads, sequence, shape.head_dim)
        key, value = (one.view(batch, shape.kv_heads, keys, shape.head_dim) for one in (key, value))
        if angles is not None and shape.rotary:
            query, key = (attention_ops.rotate_positions(tape, one, angles, shape.rotary) for one in (query, key))
        if shape.causal:
            key, value = self.build.keep(key, value, window=shape.window)
        mixed = self._mix(query, key, value, memory, bias)
        del query, key, value
        return self.out(mixed.view(batch, sequence, shape.query_width))

    def _mix(
        self, query: TapeTensor, key: TapeTensor, value: TapeTensor, memory: TapeTensor | None, bias: TapeTensor | None
    ) -> TapeTensor:
        shape, tape = self.shape, self.build.tape
        times = shape.heads // shape.kv_heads
        if tape.autocast:
            query, key, value = (tape.cast(one, tape.autocast) for one in (query, key, value))
        flash = self.build.cuda and query.dtype != "float32"
        if times > 1 and shape.spread:
            key, value = attention_ops.repeat_heads(tape, key, times), attention_ops.repeat_heads(tape, value, times)
        elif shape.written_out or (times > 1 and not flash):
            return self._written_out(query, key, value, bias)
        causal = shape.causal and memory is None and bias is None
        if bias is not None and bias.slot is not None:
            bias = attention_ops.copy_tensor(tape, bias, "where")
        return attention_ops.fused_attention(
            tape, query, key, value, causal=causal, window=shape.window, cuda=self.build.cuda, bias=bias
        )

    def _written_out(
        self, query: TapeTensor, key: TapeTensor, value: TapeTensor, bias: TapeTensor | None
    ) -> TapeTensor:
        """Mix op by op: an implementation without a kernel, or kernels that take no grouped heads."""
        shape, tape = self.shape, self.build.tape
        times = shape.heads // shape.kv_heads
        key, value = attention_ops.repeat_heads(tape, key, times), attention_ops.repeat_heads(tape, value, times)
        if shape.fused:
            query = attention_ops.copy_tensor(tape, query, "clone")
        mixed, scores = attention_ops.unfused_attention(
            tape, query, key, value, bias=bias, sinks=self.sinks, capped=shape.capped,
            dropout=shape.dropout,
        )  # fmt: skip
        self.build.scores = scores if shape.written_out else None
        return mixed

    def _project(self, hidden: TapeTensor, memory: TapeTensor) -> tuple[TapeTensor, TapeTensor, TapeTensor]:
        shape = self.shape
        if shape.fused:
            widths = (shape.query_width, shape.key_width, shape.key_width)
            query, key, value = attention_ops.split_last_axis(self.build.tape, self.qkv(hidden), widths)
            return query, key, value
        return self.query(hidden), self.key(memory), self.value(memory)

    def _normalise(self, norm: Norm, source: TapeTensor, heads: int) -> TapeTensor:
        if self.shape.query_key_norm.startswith("width"):
            return norm(source)
        batch, sequence, _ = source.shape
        normal = norm(source.view(batch, sequence, heads, self.shape.head_dim))
        return normal.view(batch, sequence, source.shape[-1])


class FeedForwardBlock:
    """Two or three linear layers around a pointwise function."""

    __slots__ = ("down", "gate", "shape", "tape", "up")

    def __init__(self, build: ModelBuilder, hidden: int, shape: FeedForwardShape, experts: int = 0) -> None:
        self.tape, self.shape = build.tape, shape
        fused = shape.fused and shape.gated
        rows = 2 * shape.width if fused else shape.width
        self.gate = Linear(build, rows, hidden, bias=shape.bias, experts=experts) if shape.gated and not fused else None
        self.up = Linear(build, rows, hidden, bias=shape.bias, experts=experts)
        self.down = Linear(build, hidden, shape.width, bias=shape.bias, experts=experts)

    def __call__(self, hidden: TapeTensor) -> TapeTensor:
        """Return the block's answer, of the shape of ``hidden``."""
        shape, tape = self.shape, self.tape
        if shape.gated:
            if self.gate is None:
                gate, inner = attention_ops.split_last_axis(tape, self.up(hidden), (shape.width, shape.width))
            else:
                gate, inner = self.gate(hidden), self.up(hidden)
            if shape.activation == "clamped_swiglu":
                inner = ops.clamped_swiglu(tape, gate, inner)
            else:
                gate = ops.activation(tape, gate, shape.activation)
                inner = ops.multiply(tape, gate, inner)
            del gate
        else:
            inner = ops.activation(tape, self.up(hidden), shape.activation)
        return self.down(ops.dropout(tape, inner, shape.dropout))


def _head_norm(build: ModelBuilder, shape: AttentionShape, heads: int) -> Norm | None:
    """Make the norm of the queries' or keys' heads, if there is one."""
    kinds = {
        "head": ("rms", (shape.head_dim,)),
        "head-layer": ("layer", (shape.head_dim,)),
        "head-wide": ("rms-wide", (shape.head_dim,)),
        "width": ("rms", (heads * shape.head_dim,)),
        "width-wide": ("rms-wide", (heads * shape.head_dim,)),
        "each": ("unbiased", (heads, shape.head_dim)),
        "each-written": ("written", (heads, shape.head_dim)),
        "bare": ("bare-rms", ()),
    }
    if not shape.query_key_norm:
        return None
    kind, size = kinds[shape.query_key_norm]
    return Norm(build, kind, *size)
