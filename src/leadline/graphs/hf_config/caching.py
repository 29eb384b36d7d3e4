"""The KV cache on a tape: what each layer keeps of the tokens so far, and how one more joins it.

As transformers' own cache: a layer's keys and values are one tensor each, a new token is joined to them by a copy of
the whole, and a sliding window of w keeps the last w - 1 tokens (the next one completes the window).
"""

from collections.abc import Sequence
from typing import NamedTuple

from leadline.core.graph import BYTES_PER_ELEMENT, OpKind, StorageCategory
from leadline.graphs.hf_config.tape import Size, Tape

CACHE = StorageCategory.KV_CACHE


class Kept(NamedTuple):
    """One tensor of the cache (b, heads, tokens, d), and the sliding window that bounds its tokens."""

    size: Size
    window: int | None = None


class Layout(NamedTuple):
    """The tensors of a whole cache without their memory: (b, heads, d), dtype and window of each, by layer."""

    rows: tuple[tuple[tuple[int, int, int], str, int | None], ...]

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
            b * heads * _held(length, window) * d * BYTES_PER_ELEMENT[dtype]
            for (b, heads, d), dtype, window in self.rows
        )

    def hold(self, tape: Tape, length: int) -> list[Kept]:
        """Take the memory of the cache of ``length`` tokens on a tape."""
        return [
            Kept(tape.new((b, heads, _held(length, window), d), dtype, CACHE), window)
            for (b, heads, d), dtype, window in self.rows
        ]


def layout_of(cache: Sequence[Kept]) -> Layout:
    """Return the layout of the cache that a prefill left."""
    return Layout(
        tuple(((one.shape[0], one.shape[1], one.shape[3]), one.dtype, window) for one, window in cache),
    )


def appended(tape: Tape, past: Kept, made: Size, dtype: str) -> Size:
    """Join what a step made to what was held, which is given back: (b, heads, held + made, d)."""
    b, heads, held, d = past.size.shape
    joined = tape.new((b, heads, held + made.shape[2], d), dtype, CACHE)
    tape.op("cat", OpKind.COPY, [past.size, made], [joined])
    return tape.node(joined, lambda _: None)


def _held(length: int, window: int | None) -> int:
    return min(length, window - 1) if window else length
