"""Modules of a transformer without data. Each makes its weights once, and runs on the tape when called."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial

from leadline.core.graph import StorageCategory
from leadline.graphs.hf_config import attention_ops, ops
from leadline.graphs.hf_config.adapters import Adapter, AdapterWeights, QuantizedWeight
from leadline.graphs.hf_config.generation import CachedTensor, append_tokens, write_in_place, write_prompt
from leadline.graphs.hf_config.peft_methods import AdapterPlan
from leadline.graphs.hf_config.prompts import virtual_tokens
from leadline.graphs.hf_config.quantization import CheckpointQuantization
from leadline.graphs.hf_config.shape import AttentionShape, FeedForwardShape
from leadline.graphs.hf_config.tape import Tape, TapeTensor
from leadline.graphs.hf_config.weight_formats import WeightFormat


@dataclass(slots=True)
class ModelBuilder:
    """Makes weights for modules, and holds the tape that they record on.

    Attributes:
        dtype: Type of the weights.
        cuda: Choose attention kernels as on a GPU.
        checkpointing: Each layer is checkpointed.
        caching: Keep the keys and values of causal layers, as causal models do by default. Training keeps them until
            the loss is known, except under checkpointing.
        last_only: Score the last token alone, as generation does.
        fused_loss: Compute the loss without the scores of all tokens, where the head allows it.
        liger: RMS norms, gated activations and rotary positions are one kernel each, as Liger Kernel has them.
        paged: The cache is written into blocks.
        cache_dtype: Type of the numbers in these blocks; ``None`` for that of the keys and values.
        past: Cache that a decode step starts from, by layer. The step consumes it.
        cache: Cache that the pass leaves.
        inputs: Inputs, held until the step ends.
        scores: Latest unfused attention scores, held as their owner holds them.
        adapters: Method of peft that trains ``adapter_weights``; all others are frozen.
        quantization: Storage of the weights of all linear layers, or of those that a checkpoint names.
        quantized: Weights stored so.
        path: Names of the modules that are being made, from the outermost.
    """

    tape: Tape
    dtype: str
    cuda: bool = True
    checkpointing: bool = False
    caching: bool = True
    last_only: bool = False
    fused_loss: bool = False
    liger: bool = False
    paged: bool = False
    cache_dtype: str | None = None
    past: list[CachedTensor] = field(default_factory=list)
    cache: list[CachedTensor] = field(default_factory=list)
    inputs: list[TapeTensor] = field(default_factory=list)
    scores: TapeTensor | None = None
    adapters: AdapterPlan | None = None
    adapter_weights: AdapterWeights = field(init=False)
    quantization: WeightFormat | CheckpointQuantization | None = None
    quantized: list[QuantizedWeight] = field(default_factory=list)
    path: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Let all adapters share one maker of weights."""
        self.adapter_weights = AdapterWeights(self.tape, self.adapters.dtype if self.adapters else self.dtype)

    @contextmanager
    def scope(self, *names: str) -> Iterator[None]:
        """Make the modules in the context inside a module of this name."""
        self.path += names
        yield
        del self.path[-len(names) :]

    def weight(self, *shape: int, trained: bool = True, saved: bool = False) -> TapeTensor:
        """Make one weight. With adapters it is frozen, or a trained copy if it is ``saved`` with them."""
        if self.adapters is None:
            return self.tape.parameter(*shape, dtype=self.dtype, trained=trained)
        weight = self.tape.parameter(*shape, dtype=self.dtype, trained=False)
        return self.tape.parameter(*shape, dtype=self.dtype) if saved else weight

    def trains(self, part: str) -> bool:
        """Return whether ``tables`` (embedding and output layer) or ``norms`` are trained with adapters."""
        return self.adapters is not None and self.adapters.trains(part)

    def adapter(self, name: str, n: int, k: int, *, bias: bool) -> Adapter | None:
        """Make the adapter of a frozen (n, k) weight, if it has one."""
        plan = self.adapters
        parts = plan.parts(self.path, name, (n, k), bias=bias) if plan else None
        return Adapter(self.tape, parts, (n, k), self.adapter_weights, plan.dropout) if plan and parts else None

    def merges(self, *names: str) -> bool:
        """Return whether products of the same source are one, as in serving engines, if all are in one format."""
        formats = {self._format_of(name) for name in names}
        return self.paged and self.adapters is None and len(formats) == 1

    def _format_of(self, name: str, *, expert: bool = False, head: bool = False) -> WeightFormat | None:
        form = self.quantization
        if isinstance(form, CheckpointQuantization):
            return form.format_of(".".join((*self.path, name)), expert=expert, head=head)
        return None if expert or head else form

    def quantize(self, name: str, *shape: int, head: bool = False) -> QuantizedWeight | None:
        """Make a frozen (n, k) weight in few bits, or one for each expert, if the weights of that name are."""
        form = self._format_of(name, expert=len(shape) > 2, head=head)
        if form is None:
            return None
        self.quantized.append(QuantizedWeight(self.tape, form, *shape))
        return self.quantized[-1]

    def add_input(self, shape: tuple[int, ...], dtype: str) -> TapeTensor:
        """Make an input, held until the step ends."""
        self.inputs.append(self.tape.new(shape, dtype, StorageCategory.INPUT))
        return self.inputs[-1]

    def cache_tensors(self, *tensors: TapeTensor, window: int | None = None) -> tuple[TapeTensor, ...]:
        """Return keys and values (b, heads, tokens, d) as cached, joined to those of earlier tokens in one type."""
        if not self.caching:
            return tensors
        dtype = "float32" if any(tensor.dtype == "float32" for tensor in tensors) else tensors[0].dtype
        if self.cache_dtype is not None:
            dtype = self.cache_dtype
        if self.past and self.paged:
            cached = tuple(write_in_place(self.tape, self.past.pop(0), tensor) for tensor in tensors)
        elif self.past:
            cached = tuple(append_tokens(self.tape, self.past.pop(0), tensor, dtype) for tensor in tensors)
        elif self.paged:
            cached = tuple(write_prompt(self.tape, tensor, dtype) for tensor in tensors)
        else:
            category = StorageCategory.ACTIVATION if self.tape.training else StorageCategory.KV_CACHE
            cached = tuple(attention_ops.copy_tensor(self.tape, tensor, "cat", dtype, category) for tensor in tensors)
        self.cache += [CachedTensor(tensor, window) for tensor in cached]
        return cached


class Linear:
    """A product with an (n, k) weight, or with one such weight for each expert.

    A ``plain`` one is neither adapted nor quantized. Experts are weights of their block: not adapted, and quantized
    only in a checkpoint. A ``saved`` one is an output layer that may be trained whole with adapters. The ``name`` is
    that of most checkpoints.
    """

    def __init__(
        self, builder: ModelBuilder, n: int, k: int, *, bias: bool = True, experts: int = 0, plain: bool = False,
        saved: bool = False, name: str = "",
    ) -> None:  # fmt: skip
        self.tape = builder.tape
        shape = (experts, n, k) if experts else (n, k)
        self.quantized = None if plain else builder.quantize(name, *shape, head=saved)
        copied = saved and builder.trains("tables")
        self.weight = builder.weight(*shape, saved=copied) if self.quantized is None else None
        self.bias = builder.weight(*shape[:-1], saved=copied) if bias else None
        self.adapter = builder.adapter(name, n, k, bias=bias) if not (experts or plain or saved) else None

    def __call__(self, source: TapeTensor) -> TapeTensor:
        """Return (…, n) for (…, k)."""
        tape, adapter, weight = self.tape, self.adapter, self.weight
        if adapter is not None:
            source = adapter.prepare(source)
            replacement = adapter.replacement(weight) if weight is not None else None
            if replacement is not None:
                return tape.cast(ops.linear(tape, source, replacement, self.bias), source.dtype)
        if self.quantized is not None:
            result = self.quantized.product(source, self.bias)
        elif weight is not None:
            result = ops.linear(tape, source, weight, self.bias, cast=len(weight.shape) == 2)
        return result if adapter is None else adapter.add(source, result, widen=self.quantized is None)


class Norm:
    """A norm over the last axis. Its weight may have a shape of its own.

    Kinds: ``layer`` and ``rms`` norms; ``rms-wide`` multiplies its weight in float32; ``unbiased`` and ``bare`` are
    layer norms without a bias or any weight; ``written`` is a layer norm computed op by op, without a bias.
    """

    def __init__(self, builder: ModelBuilder, kind: str, *shape: int) -> None:
        self.tape, self.kind, self.liger = builder.tape, kind, builder.liger
        self.weight = None if kind == "bare" else builder.weight(*shape, saved=builder.trains("norms"))
        self.bias = builder.weight(*shape, saved=builder.trains("norms")) if kind == "layer" else None

    def __call__(self, source: TapeTensor) -> TapeTensor:
        """Return ``source`` normalized."""
        tape = self.tape
        if self.liger and self.weight is not None and self.kind in ("rms", "rms-wide"):
            return ops.fused_rms_norm(tape, source, self.weight, in_place=self.kind == "rms")
        if self.kind == "rms-wide" and self.weight is not None:
            normal = ops.unfused_norm(tape, tape.cast(source, "float32"), None, centered=False)
            return tape.cast(ops.multiply(tape, normal, self.weight), source.dtype)
        if self.kind in ("rms", "written"):
            return ops.unfused_norm(tape, source, self.weight, centered=self.kind == "written")
        return ops.layer_norm(tape, source, self.weight, self.bias)


class AttentionBlock:
    """Attention to the tokens themselves, or to a ``memory``."""

    def __init__(self, builder: ModelBuilder, shape: AttentionShape) -> None:
        self.builder, self.shape = builder, shape
        hidden, q, kv = shape.hidden, shape.query_width, shape.key_width
        merged = shape.query_bias == shape.key_bias and builder.merges("q_proj", "k_proj", "v_proj", "qkv_proj")
        self.fused = shape.fused or merged
        if self.fused:
            self.qkv = Linear(builder, q + 2 * kv, hidden, bias=shape.query_bias, name="qkv_proj")
        else:
            self.query = Linear(builder, q, hidden, bias=shape.query_bias, name="q_proj")
            self.key = Linear(builder, kv, hidden, bias=shape.key_bias, name="k_proj")
            self.value = Linear(builder, kv, hidden, bias=shape.query_bias, name="v_proj")
        self.out = Linear(builder, hidden, q, bias=shape.out_bias, name="o_proj")
        self.sinks = builder.weight(shape.heads) if shape.sinks else None
        self.prefix = [
            tokens
            for _ in "kv"
            if (tokens := virtual_tokens(builder.tape, builder.adapters, builder.adapter_weights, "keys", kv))
        ]
        self.query_norm = _head_norm(builder, shape, shape.heads)
        self.key_norm = _head_norm(builder, shape, shape.kv_heads)

    def __call__(
        self,
        hidden: TapeTensor,
        angles: TapeTensor | None,
        memory: TapeTensor | None,
        bias: TapeTensor | None,
        mask: TapeTensor | None = None,
    ) -> TapeTensor:
        """Return the attended values of the tokens of ``hidden`` (batch, sequence, width). Eager ones add ``mask``."""
        shape, tape = self.shape, self.builder.tape
        batch, sequence, _ = hidden.shape
        query, key, value = self._project(hidden, hidden if memory is None else memory)
        keys = key.shape[1]
        if self.query_norm is not None and self.key_norm is not None:
            query = self._normalize(self.query_norm, query, shape.heads)
            key = self._normalize(self.key_norm, key, shape.kv_heads)
        query = query.view(batch, shape.heads, sequence, shape.head_dim)
        key, value = (tensor.view(batch, shape.kv_heads, keys, shape.head_dim) for tensor in (key, value))
        if angles is not None and shape.rotary and self.builder.liger and shape.rotary == shape.head_dim:
            query, key = (attention_ops.rotate_in_place(tape, tensor, angles) for tensor in (query, key))
        elif angles is not None and shape.rotary:
            query, key = (attention_ops.rotate_positions(tape, tensor, angles, shape.rotary) for tensor in (query, key))
        if self.prefix:
            key, value = (tokens.prepend(tensor, 2) for tokens, tensor in zip(self.prefix, (key, value), strict=True))
        elif shape.causal:
            key, value = self.builder.cache_tensors(key, value, window=shape.window)
        mixed = self._mix(query, key, value, memory, bias, mask)
        del query, key, value
        return self.out(mixed.view(batch, sequence, shape.query_width))

    def _mix(
        self, query: TapeTensor, key: TapeTensor, value: TapeTensor, memory: TapeTensor | None,
        bias: TapeTensor | None, mask: TapeTensor | None,
    ) -> TapeTensor:  # fmt: skip
        shape, tape = self.shape, self.builder.tape
        times = shape.heads // shape.kv_heads
        if tape.autocast:
            query, key, value = (tape.cast(tensor, tape.autocast) for tensor in (query, key, value))
        flash = self.builder.cuda and query.dtype != "float32"
        if shape.eager:
            return self._mix_eagerly(query, key, value, bias, mask)
        if times > 1 and shape.spread:
            key, value = (
                attention_ops.repeat(tape, key, "clone", heads=times),
                attention_ops.repeat(tape, value, "clone", heads=times),
            )
        elif shape.written_out or (times > 1 and not flash):
            return self._mix_unfused(query, key, value, bias)
        causal = shape.causal and memory is None and bias is None
        if bias is not None and bias.slot is not None:
            bias = attention_ops.copy_tensor(tape, bias, "where")
        mixed = attention_ops.fused_attention(
            tape, query, key, value, causal=causal, window=shape.window, cuda=self.builder.cuda, bias=bias,
            sinks=self.sinks,
        )  # fmt: skip
        # PyTorch's flash attention keeps the order of the queries' axes. Heads come first in queries that are joined
        # from a rotated part and another one, and the output layer needs tokens first.
        joined = 0 < shape.rotary < shape.head_dim and not self.builder.paged
        return attention_ops.copy_tensor(tape, mixed, "clone") if joined and flash and bias is None else mixed

    def _mix_unfused(
        self, query: TapeTensor, key: TapeTensor, value: TapeTensor, bias: TapeTensor | None
    ) -> TapeTensor:
        """Mix op by op, for an implementation without a fused kernel, or a kernel without grouped heads."""
        shape, tape = self.shape, self.builder.tape
        times = shape.heads // shape.kv_heads
        if times > 1:
            key, value = (attention_ops.repeat(tape, tensor, "clone", heads=times) for tensor in (key, value))
        if shape.fused:
            query = attention_ops.copy_tensor(tape, query, "clone")
        mixed, scores = attention_ops.unfused_attention(
            tape, query, key, value, bias=bias, capped=shape.capped, dropout=shape.dropout,
            softmax_type=shape.softmax if shape.written_out else "own",
        )  # fmt: skip
        self.builder.scores = scores if shape.written_out else None
        return mixed

    def _mix_eagerly(
        self, query: TapeTensor, key: TapeTensor, value: TapeTensor, bias: TapeTensor | None, mask: TapeTensor | None
    ) -> TapeTensor:
        """Mix op by op as transformers does: products need heads before tokens, and linear layers tokens before heads.

        The copies between these orders have a gradient that is copied, too.
        """
        shape, tape = self.shape, self.builder.tape
        times = shape.heads // shape.kv_heads
        query = attention_ops.clone_both_ways(tape, query)
        copied = self.builder.caching and shape.causal
        key, value = (attention_ops.clone_both_ways(tape, tensor, forward=not copied) for tensor in (key, value))
        if times > 1:
            key, value = (attention_ops.repeat(tape, tensor, "clone", heads=times) for tensor in (key, value))
        mixed, self.builder.scores = attention_ops.unfused_attention(
            tape, query, key, value, bias=bias, mask=mask, sinks=self.sinks, capped=shape.capped,
            dropout=shape.dropout, softmax_type=shape.softmax,
        )  # fmt: skip
        return attention_ops.clone_both_ways(tape, mixed)

    def _project(self, hidden: TapeTensor, memory: TapeTensor) -> tuple[TapeTensor, TapeTensor, TapeTensor]:
        shape = self.shape
        if self.fused:
            widths = (shape.query_width, shape.key_width, shape.key_width)
            query, key, value = attention_ops.split_last_axis(self.builder.tape, self.qkv(hidden), widths)
            return query, key, value
        return self.query(hidden), self.key(memory), self.value(memory)

    def _normalize(self, norm: Norm, source: TapeTensor, heads: int) -> TapeTensor:
        if self.shape.query_key_norm.startswith("width"):
            return norm(source)
        batch, sequence, _ = source.shape
        normal = norm(source.view(batch, sequence, heads, self.shape.head_dim))
        return normal.view(batch, sequence, source.shape[-1])


class FeedForwardBlock:
    """Two or three linear layers around a pointwise function."""

    def __init__(self, builder: ModelBuilder, hidden: int, shape: FeedForwardShape, experts: int = 0) -> None:
        self.tape, self.shape, self.liger = builder.tape, shape, builder.liger
        fused = shape.gated and (shape.fused or builder.merges("gate_proj", "up_proj", "gate_up_proj"))
        rows = 2 * shape.width if fused else shape.width
        into = partial(Linear, builder, rows, hidden, bias=shape.bias, experts=experts)
        self.gate = into(name="gate_proj") if shape.gated and not fused else None
        self.up = into(name="gate_up_proj" if fused else "up_proj")
        self.down = Linear(builder, hidden, shape.width, bias=shape.bias, experts=experts, name="down_proj")

    def __call__(self, hidden: TapeTensor) -> TapeTensor:
        """Return the output of the block, with the shape of ``hidden``."""
        shape, tape = self.shape, self.tape
        if shape.gated:
            if self.gate is None:
                gate, inner = attention_ops.split_last_axis(tape, self.up(hidden), (shape.width, shape.width))
                if self.liger and not shape.experts:  # the kernel takes whole tensors
                    gate, inner = (attention_ops.copy_tensor(tape, half, "clone") for half in (gate, inner))
            else:
                gate, inner = self.gate(hidden), self.up(hidden)
            if shape.activation == "clamped_swiglu":
                inner = ops.clamped_swiglu(tape, gate, inner)
            elif self.liger:
                inner = ops.fused_gated_activation(tape, gate, inner, shape.activation)
            else:
                gate = ops.activation(tape, gate, shape.activation)
                inner = ops.multiply(tape, gate, inner)
            del gate
        else:
            inner = ops.activation(tape, self.up(hidden), shape.activation)
        return self.down(ops.dropout(tape, inner, shape.dropout))


def _head_norm(builder: ModelBuilder, shape: AttentionShape, heads: int) -> Norm | None:
    """Make the norm of the queries' or keys' heads, if the block has one."""
    one_head, all_heads = (shape.head_dim,), (heads * shape.head_dim,)
    kinds = {
        "head": ("rms", one_head), "head-wide": ("rms-wide", one_head),
        "width": ("rms", all_heads), "width-wide": ("rms-wide", all_heads),
        "each": ("unbiased", (heads, shape.head_dim)), "each-written": ("written", (heads, shape.head_dim)),
    }  # fmt: skip
    if not shape.query_key_norm:
        return None
    kind, size = kinds[shape.query_key_norm]
    return Norm(builder, kind, *size)
