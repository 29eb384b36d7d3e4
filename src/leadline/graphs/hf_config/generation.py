"""The KV cache on a tape: what each layer keeps of the tokens so far, and how one more joins it.

As transformers' own cache: a layer's keys and values are one tensor each, a new token is joined to them by a copy of
the whole, and a sliding window of w keeps the last w - 1 tokens (the next one completes the window).

A paged cache (Kwon et al. 2023, vLLM) lies in blocks of ``CACHE_BLOCK`` tokens, into which a new token is written where it
belongs; what the last block of a sequence has more room for is held as well.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from leadline.core.errors import InvalidInput
from leadline.core.graph import BYTES_PER_ELEMENT, DecodeStep, Generation, OpGraph, OpKind, StorageCategory
from leadline.graphs.hf_config.shape import EncoderDecoderShape, ModelShape
from leadline.graphs.hf_config.tape import Tape, TapeTensor

CACHE = StorageCategory.KV_CACHE
CACHE_BLOCK = 16
"""Tokens of a block (vLLM's default)."""


class CachedTensor(NamedTuple):
    """One tensor of the cache (b, heads, tokens, d), and the sliding window that bounds its tokens."""

    size: TapeTensor
    window: int | None = None


class CacheLayout(NamedTuple):
    """The tensors of a whole cache without their memory: (b, heads, d), dtype and window of each, by layer.

    Memory is held for a multiple of ``block`` tokens.
    """

    rows: tuple[tuple[tuple[int, int, int], str, int | None], ...]
    block: int = 1

    @property
    def heads(self) -> int:
        """The fewest heads that any tensor has (a latent counts as one)."""
        return min((shape[1] for shape, _, _ in self.rows), default=0)

    @property
    def windows(self) -> tuple[int, ...]:
        """The sliding windows of the layers, each once, the narrowest first."""
        return tuple(sorted({window for _, _, window in self.rows if window}))

    def size_bytes(self, length: int) -> int:
        """Return the bytes of the cache of sequences of ``length`` tokens."""
        return sum(
            b * heads * round_to_blocks(_held(length, window), self.block) * d * BYTES_PER_ELEMENT[dtype]
            for (b, heads, d), dtype, window in self.rows
        )

    def hold(self, tape: Tape, length: int) -> list[CachedTensor]:
        """Take the memory of the cache of ``length`` tokens on a tape, and where it is paged that of the next one."""
        found = []
        for (b, heads, d), dtype, window in self.rows:
            held = _held(length, window)
            room = held if self.block == 1 else round_to_blocks(held + 1, self.block)
            taken = tape.new((b, heads, room, d), dtype, CACHE)
            found.append(CachedTensor(TapeTensor((b, heads, held, d), dtype, taken.storage), window))
        return found


def cache_layout(cache: Sequence[CachedTensor], block: int = 1) -> CacheLayout:
    """Return the layout of the cache that a prefill left."""
    return CacheLayout(
        tuple(((one.shape[0], one.shape[1], one.shape[3]), one.dtype, window) for one, window in cache), block
    )


def round_to_blocks(tokens: int, block: int) -> int:
    """Return the tokens that whole blocks hold."""
    return -(-tokens // block) * block


def write_prompt(tape: Tape, made: TapeTensor, dtype: str) -> TapeTensor:
    """Write the keys or values of a prompt (b, heads, tokens, d) into blocks, and return them as they lie there."""
    b, heads, tokens, d = made.shape
    blocks = tape.new((b, heads, round_to_blocks(tokens, CACHE_BLOCK), d), dtype, CACHE)
    kept = TapeTensor(made.shape, dtype, blocks.storage)
    tape.op("reshape_and_cache", OpKind.COPY, [made], [kept])
    return tape.node(kept, lambda _: None)


def write_in_place(tape: Tape, past: CachedTensor, made: TapeTensor) -> TapeTensor:
    """Write what a step made behind what was held, in place: (b, heads, held + made, d)."""
    b, heads, held, d = past.size.shape
    tape.op("reshape_and_cache", OpKind.COPY, [made], [made])
    return tape.node(
        TapeTensor((b, heads, held + made.shape[2], d), past.size.dtype, past.size.storage), lambda _: None
    )


def append_tokens(tape: Tape, past: CachedTensor, made: TapeTensor, dtype: str) -> TapeTensor:
    """Join what a step made to what was held, which is given back: (b, heads, held + made, d)."""
    b, heads, held, d = past.size.shape
    joined = tape.new((b, heads, held + made.shape[2], d), dtype, CACHE)
    tape.op("cat", OpKind.COPY, [past.size, made], [joined])
    return tape.node(joined, lambda _: None)


def _held(length: int, window: int | None) -> int:
    return min(length, window - 1) if window else length


DecodeStepFunction = Callable[[CacheLayout, int], OpGraph]


def require_generator(shape: ModelShape, what: str) -> None:
    """Refuse a model that cannot generate, or whose generation is not expanded.

    Raises:
        InvalidInput: it is an encoder, has no scores for the next token, or is an encoder with a decoder.
    """
    instead = "leave --generate out, or name a decoder such as llama"
    if isinstance(shape, EncoderDecoderShape):
        raise InvalidInput(
            f"{what} is an encoder with a decoder ({shape.family}), whose generation is not expanded: {instead}"
        )
    if not shape.layers[0].attention.causal:
        raise InvalidInput(f"{what} is an encoder ({shape.family}), which cannot generate: {instead}")
    if shape.head.outputs != shape.vocab:
        raise InvalidInput(f"{what} has no head that scores its vocabulary, so it cannot generate: {instead}")


def expand_decode_steps(decode: DecodeStepFunction, layout: CacheLayout, prompt: int, generated: int) -> Generation:
    """Expand the decode steps that follow a prompt: the first, the last and the middle one of each stretch.

    The prompt's own pass makes the first token, so that ``generated - 1`` steps follow, of lengths from ``prompt + 1``.
    A stretch ends where a sliding window is full, from which on its layers read no more.
    """
    end = prompt + generated - 1
    fulls = [window for window in layout.windows if prompt < window < end]
    begins = [prompt + 1, *(window + 1 for window in fulls)]
    ends = [*fulls, end]
    stretches = tuple(
        tuple(DecodeStep(length, decode(layout, length)) for length in _lengths(first, last))
        for first, last in zip(begins, ends, strict=True)
        if first <= last
    )
    return Generation(prompt, generated, stretches, layout.size_bytes(end))


def _lengths(first: int, last: int) -> list[int]:
    return sorted({first, (first + last) // 2, last})
