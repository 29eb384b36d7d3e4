"""Free pieces of memory, the smallest that suffices first: what both allocators choose from."""

from bisect import bisect_left, insort
from heapq import heappop, heappush

NOWHERE = -1
"""No piece: no name is negative."""


class FreeBlocks:
    """Free pieces by name (a number from 0: an address, or how old a piece is) and size in bytes.

    A piece that is taken out is only counted off: its name is dropped when it comes first among those of its size. Each
    change is thus logarithmic in the number of pieces, and a move within the list of distinct sizes; D bytes of memory
    in pieces of whole units of u bytes have √(2·D ÷ u) of these at most, however long a step is.
    """

    __slots__ = ("_by_size", "_counts", "_distinct", "sizes")

    def __init__(self) -> None:
        self.sizes: dict[int, int] = {}
        self._distinct: list[int] = []
        self._by_size: dict[int, list[int]] = {}
        self._counts: dict[int, int] = {}

    def __contains__(self, name: int) -> bool:
        """Tell whether the piece is free."""
        return name in self.sizes

    def best(self, size: int) -> int:
        """Return the first of the smallest pieces of ``size`` bytes or more; ``NOWHERE`` if there is none."""
        place = bisect_left(self._distinct, size)
        if place == len(self._distinct):
            return NOWHERE
        found = self._distinct[place]
        alike, sizes = self._by_size[found], self.sizes
        while sizes.get(alike[0]) != found:
            heappop(alike)
        return alike[0]

    def add(self, name: int, size: int) -> None:
        """Take in a piece."""
        self.sizes[name] = size
        if size in self._counts:
            self._counts[size] += 1
            heappush(self._by_size[size], name)
        else:
            self._counts[size] = 1
            self._by_size[size] = [name]
            insort(self._distinct, size)

    def remove(self, name: int) -> int:
        """Take out a piece and return its size."""
        size = self.sizes.pop(name)
        left = self._counts[size] - 1
        if left:
            self._counts[size] = left
        else:
            del self._counts[size], self._by_size[size]
            self._distinct.pop(bisect_left(self._distinct, size))
        return size
