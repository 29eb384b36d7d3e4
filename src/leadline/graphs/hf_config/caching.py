"""The KV cache on a tape: what each layer keeps of the tokens so far, and how one more joins it.

As transformers' own cache: a layer's keys and values are one tensor each, a new token is joined to them by a copy of
the whole, and a sliding window of w keeps the last w - 1 tokens (the next one completes the window).

A paged cache (Kwon et al. 2023, vLLM) lies in blocks of ``BLOCK`` tokens, into which a new token is written where it
belongs; what the last block of a sequence has more room for is held as well.
"""

from collections.abc import Sequence
from typing import NamedTuple

from leadline.core.graph import BYTES_PER_ELEMENT, OpKind, StorageCategory
from leadline.graphs.hf_config.tape import Size, Tape

CACHE = StorageCategory.KV_CACHE
BLOCK = 16
"""Tokens of a block (vLLM's default)."""


class Kept(NamedTuple):
    """One tensor of the cache (b, heads, tokens, d), and the sliding window that bounds its tokens."""

    size: Size
    window: int | None = None


class Layout(NamedTuple):
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
            b * heads * rounded(_held(length, window), self.block) * d * BYTES_PER_ELEMENT[dtype]
            for (b, heads, d), dtype, window in self.rows
        )

    def hold(self, tape: Tape, length: int) -> list[Kept]:
        """Take the memory of the cache of ``length`` tokens on a tape, and where it is paged that of the next one."""
        found = []
        for (b, heads, d), dtype, window in self.rows:
            held = _held(length, window)
            room = held if self.block == 1 else rounded(held + 1, self.block)
            taken = tape.new((b, heads, room, d), dtype, CACHE)
            found.append(Kept(Size((b, heads, held, d), dtype, taken.storage), window))
        return found


def layout_of(cache: Sequence[Kept], block: int = 1) -> Layout:
    """Return the layout of the cache that a prefill left."""
    return Layout(
        tuple(((one.shape[0], one.shape[1], one.shape[3]), one.dtype, window) for one, window in cache), block
    )


def rounded(tokens: int, block: int) -> int:
    """Return the tokens that whole blocks hold."""
    return -(-tokens // block) * block


def filed(tape: Tape, made: Size, dtype: str) -> Size:
    """Write the keys or values of a prompt (b, heads, tokens, d) into blocks, and return them as they lie there."""
    b, heads, tokens, d = made.shape
    blocks = tape.new((b, heads, rounded(tokens, BLOCK), d), dtype, CACHE)
    kept = Size(made.shape, dtype, blocks.storage)
    tape.op("reshape_and_cache", OpKind.COPY, [made], [kept])
    return tape.node(kept, lambda _: None)


def written(tape: Tape, past: Kept, made: Size) -> Size:
    """Write what a step made behind what was held, in place: (b, heads, held + made, d)."""
    b, heads, held, d = past.size.shape
    tape.op("reshape_and_cache", OpKind.COPY, [made], [made])
    return tape.node(Size((b, heads, held + made.shape[2], d), past.size.dtype, past.size.storage), lambda _: None)


def appended(tape: Tape, past: Kept, made: Size, dtype: str) -> Size:
    """Join what a step made to what was held, which is given back: (b, heads, held + made, d)."""
    b, heads, held, d = past.size.shape
    joined = tape.new((b, heads, held + made.shape[2], d), dtype, CACHE)
    tape.op("cat", OpKind.COPY, [past.size, made], [joined])
    return tape.node(joined, lambda _: None)


def _held(length: int, window: int | None) -> int:
    return min(length, window - 1) if window else length
