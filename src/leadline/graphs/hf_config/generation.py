"""The KV cache on a tape, and the decode steps that stand for all steps of a generation.

As in transformers' own cache, a layer's keys and values are one tensor each. A new token is appended by a copy of the
whole. A sliding window of w keeps the last w - 1 tokens, and the next token completes the window.

A paged cache (Kwon et al. 2023, vLLM) consists of blocks of ``CACHE_BLOCK`` tokens, into which new tokens are
written in place. The unused part of the last block of a sequence is held as well.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from leadline.core.errors import InvalidInput
from leadline.core.graph import BYTES_PER_ELEMENT, DecodeStep, Generation, OpGraph, OpKind, StorageCategory
from leadline.graphs.hf_config.shape import EncoderDecoderShape, ModelShape
from leadline.graphs.hf_config.tape import Tape, TapeTensor

CACHE = StorageCategory.KV_CACHE
CACHE_BLOCK = 16
"""Tokens per block (vLLM's default)."""


STATE_WINDOW = 2
"""Window of the states of a state-space layer, which have the size of one token at any length."""


class CachedTensor(NamedTuple):
    """One tensor of the cache (b, heads, tokens, d), and the sliding window that limits its tokens."""

    tensor: TapeTensor
    window: int | None = None


class CacheLayout(NamedTuple):
    """The tensors of a whole cache without their memory: (b, heads, d), dtype and window of each, by layer.

    Memory is held for a multiple of ``block`` tokens.
    """

    rows: tuple[tuple[tuple[int, int, int], str, int | None], ...]
    block: int = 1

    @property
    def heads(self) -> int:
        """The fewest heads of any tensor. A latent counts as one head, and states do not count."""
        return min((shape[1] for shape, _, window in self.rows if window != STATE_WINDOW), default=0)

    @property
    def windows(self) -> tuple[int, ...]:
        """The sliding windows of the layers, each once, the narrowest first."""
        return tuple(sorted({window for _, _, window in self.rows if window and window != STATE_WINDOW}))

    def size_bytes(self, length: int) -> int:
        """Return the bytes of the cache for sequences of ``length`` tokens."""
        return sum(
            b * heads * self._capacity(_cached_tokens(length, window), window) * d * BYTES_PER_ELEMENT[dtype]
            for (b, heads, d), dtype, window in self.rows
        )

    def _capacity(self, tokens: int, window: int | None) -> int:
        """Return the tokens that memory is held for. States are not in blocks."""
        return 1 if window == STATE_WINDOW else round_to_blocks(tokens, self.block)

    def hold(self, tape: Tape, length: int) -> list[CachedTensor]:
        """Allocate the cache of ``length`` tokens on a tape, with room for the next token if it is paged."""
        tensors = []
        for (b, heads, d), dtype, window in self.rows:
            tokens = _cached_tokens(length, window)
            capacity = tokens if self.block == 1 else self._capacity(tokens + 1, window)
            memory = tape.new((b, heads, capacity, d), dtype, CACHE)
            tensors.append(CachedTensor(TapeTensor((b, heads, tokens, d), dtype, memory.storage), window))
        return tensors


def cache_layout(cache: Sequence[CachedTensor], block: int = 1) -> CacheLayout:
    """Return the layout of the cache of a prefill."""
    return CacheLayout(
        tuple(((tensor.shape[0], tensor.shape[1], tensor.shape[3]), tensor.dtype, window) for tensor, window in cache),
        block,
    )


def round_to_blocks(tokens: int, block: int) -> int:
    """Return the tokens rounded up to whole blocks."""
    return -(-tokens // block) * block


def write_prompt(tape: Tape, prompt: TapeTensor, dtype: str) -> TapeTensor:
    """Write the keys or values of a prompt (b, heads, tokens, d) into blocks, and return the cached tensor."""
    b, heads, tokens, d = prompt.shape
    blocks = tape.new((b, heads, round_to_blocks(tokens, CACHE_BLOCK), d), dtype, CACHE)
    cached = TapeTensor(prompt.shape, dtype, blocks.storage)
    tape.op("reshape_and_cache", OpKind.COPY, [prompt], [cached])
    return tape.node(cached, lambda _: None)


def write_in_place(tape: Tape, past: CachedTensor, step: TapeTensor) -> TapeTensor:
    """Write the keys or values of a step behind those in the cache, in place: (b, heads, tokens, d)."""
    b, heads, tokens, d = past.tensor.shape
    tape.op("reshape_and_cache", OpKind.COPY, [step], [step])
    joined = TapeTensor((b, heads, tokens + step.shape[2], d), past.tensor.dtype, past.tensor.storage)
    return tape.node(joined, lambda _: None)


def append_tokens(tape: Tape, past: CachedTensor, step: TapeTensor, dtype: str) -> TapeTensor:
    """Append the keys or values of a step to a copy of the cache, which replaces it: (b, heads, tokens, d)."""
    b, heads, tokens, d = past.tensor.shape
    shape = b, heads, tokens + step.shape[2], d
    joined = tape.compute("cat", OpKind.COPY, [past.tensor, step], shape, dtype, CACHE)
    return tape.node(joined, lambda _: None)


def _cached_tokens(length: int, window: int | None) -> int:
    return min(length, window - 1) if window else length


def require_generator(shape: ModelShape, reference: str) -> None:
    """Refuse a model that cannot generate, or whose generation Leadline cannot expand.

    Raises:
        InvalidInput: It is an encoder, has no scores for the next token, or is an encoder with a decoder.
    """
    fix = "leave --generate out, or name a decoder such as llama"
    if isinstance(shape, EncoderDecoderShape):
        raise InvalidInput(
            f"{reference} is an encoder with a decoder ({shape.family}), whose generation is not supported: {fix}"
        )
    if not shape.layers[0].attention.causal:
        raise InvalidInput(f"{reference} is an encoder ({shape.family}), which cannot generate: {fix}")
    if shape.head.outputs != shape.vocab:
        raise InvalidInput(f"{reference} has no head that scores its vocabulary, so it cannot generate: {fix}")


def expand_decode_steps(
    decode: Callable[[CacheLayout, int], OpGraph], layout: CacheLayout, prompt: int, generated: int
) -> Generation:
    """Expand the decode steps after a prompt: the first, the middle and the last one of each stretch.

    The prompt's own pass makes the first token, so that ``generated - 1`` steps follow, of lengths from ``prompt + 1``.
    A stretch ends when a sliding window is full, after which its layers read no more.
    """
    end = prompt + generated - 1
    fulls = [window for window in layout.windows if prompt < window < end]
    begins = [prompt + 1, *(window + 1 for window in fulls)]
    ends = [*fulls, end]
    stretches = tuple(
        tuple(DecodeStep(length, decode(layout, length)) for length in sorted({first, (first + last) // 2, last}))
        for first, last in zip(begins, ends, strict=True)
        if first <= last
    )
    return Generation(prompt, generated, stretches, layout.size_bytes(end))
