"""The objects that the transformed code calls for each ``for`` and ``while`` loop.

Items pass one by one while iterations are long, and in batches at C speed while they are short. A loop that is short in
all its passes is no longer touched.
"""

from __future__ import annotations

import sys
from itertools import chain, islice

from .bounds import LoopBound
from .record import STATE, DurationSample, clock

TYPE_CHECKING = False  # typing itself takes a tenth of a short script's start
if TYPE_CHECKING:
    from typing import Any, Callable, Dict, Iterator, List, Optional

HOT_S = 50e-6
"""Shorter iterations are not timed one by one."""
DECIDE_S, DECIDE = 1e-3, 16
"""Time and iterations of a loop before it is classified."""
PASS_S = 10e-3
"""A loop of short iterations with shorter passes is left alone; also the time of a batch."""
LENGTHS = 3
"""Passes whose length is read."""

compiling: Optional[Callable[[], bool]] = None
"""True while a compiler traces the current code, which must then not see this module."""


class WatchedLoop:
    """One loop of the user's source, over all its passes.

    ``name`` is the global of its module by which the code refers to it; if that is None, the loop runs bare.
    """

    def __init__(self, info: Dict[str, Any], namespace: Dict[str, Any], name: str) -> None:
        self.info, self.namespace, self.name = info, namespace, name
        self.number = len(STATE.loops)
        self.times = DurationSample()
        self.entries = self.passes = self.in_passes = self.current = 0
        self.parent: Optional[int] = None
        self.length: Optional[int] = None
        self.hint: Optional[int] = None
        self.generator: Any = None
        self.hot = False
        self.entered_s: Optional[float] = None
        self.depth = 0
        self.mark_s = 0.0
        self.past_s = 0.0
        self.inside: Dict[int, float] = {}
        self.inside_done: Dict[int, float] = {}
        self.bound = LoopBound(info["bound"], info["kind"]) if info["bound"] else None
        STATE.loops.append(self)

    def __reduce__(self) -> Any:
        """Pickle as ``False``, so that code in another process runs bare."""
        return bool, ()

    def __call__(self, iterable: Any = None) -> Any:
        """Return the iterator for the loop; for a ``while`` loop, record an iteration."""
        if compiling is not None and compiling():
            return iterable
        return self.tick() if self.info["kind"] == "while" else self.watch(iterable)

    def sized(self, part: Any) -> Any:
        """Return a part of the iterable unchanged, and record its length."""
        if not (compiling and compiling()) and self.entries < LENGTHS and STATE.is_watched_thread():
            length = part if type(part) is int else length_of(part)
            if length is None:
                self.note_generator(part)
            else:
                self.hint = length if self.hint is None else min(self.hint, length)
        return part

    def watch(self, iterable: Any) -> Any:
        """Return an iterator over the same items, or the iterable itself if it cannot be watched."""
        if not STATE.is_watched_thread() or self.entered_s is not None:
            return iterable
        try:
            iterator = iter(iterable)
        except Exception:  # noqa: BLE001 - the loop raises it again, at the user's line
            return iterable
        if self.entries < LENGTHS:
            length = length_of(iterable)
            length, self.hint = self.hint if length is None else length, None
            self.length = self.length if length is None else length
            if length is None:
                self.note_generator(iterable)
        return chain.from_iterable(self.batches(iterator))

    def note_generator(self, iterable: Any) -> None:
        """Store the generator function of the items, because a loop in it may know their number."""
        code = getattr(iterable, "gi_code", None)
        if code is not None:
            self.generator = (code.co_filename, code.co_firstlineno)

    def batches(self, iterator: Iterator[Any]) -> Iterator[Any]:
        """Yield the items in pieces and time them. No item is taken early, or after the end."""
        ended: List[bool] = []
        source = chain(iterator, _flag(ended))
        now_s = clock()
        self.enter(now_s)
        # A later pass of the same loop, after an abandoned one, changes ``entries``.
        token, pending = self.entries, 0
        try:
            for item in source:
                now_s = clock()
                self.settle()
                if pending:
                    self.done(now_s, pending, 2)
                elif self.times.began_s is None:
                    self.times.began_s = now_s
                pending, self.mark_s = 1, now_s
                yield (item,)
                # Passing all remaining items at once costs least.
                if self.hot and not STATE.probes:
                    pending = sys.maxsize
                    yield iterator
                    break
                if self.hot:
                    pending = self.batch()
                    yield islice(source, pending - 1)
                    if ended:
                        break
            if token == self.entries and self.entered_s is not None:
                self.close(pending)
        finally:
            if token == self.entries and self.entered_s is not None:
                self.leave()

    def close(self, pending: int) -> None:
        """Record the last iterations of a completed pass."""
        now_s = clock()
        self.settle()
        # The batch may have been cut short, so estimate its size from the length or the clock.
        if pending > 1:
            remaining = None if self.length is None else self.length - self.current
            guess = round((now_s - self.mark_s) * self.times.count / max(self.times.total_s, 1e-9))
            pending = remaining if remaining is not None and 0 < remaining <= pending else max(min(guess, pending), 1)
        if pending:
            self.done(now_s, pending, 2)

    def done(self, now_s: float, count: int, depth: int) -> None:
        """Record finished iterations; stop the job when the probe is done."""
        times = self.times
        times.add(now_s - self.mark_s, count)
        self.current += count
        if self.inside:
            self.inside_done = dict(self.inside)
        if not self.hot and times.count >= DECIDE and times.total_s >= DECIDE_S:
            # Timing every short iteration would cost more than the iteration.
            self.hot = times.total_s < HOT_S * times.count
        if self.bound is not None:
            self.bound.look(times.count, depth + 1)
        STATE.loop_done(times.count, now_s)

    def batch(self) -> int:
        """Return how many short iterations take about ten milliseconds."""
        mean_s = self.times.total_s / self.times.count
        return max(2, min(int(PASS_S / max(mean_s, 1e-9)), 8 * self.times.count))

    def begin(self) -> None:
        """Record that a ``while`` loop begins."""
        if not (compiling and compiling()) and STATE.is_watched_thread() and self.entered_s is None:
            self.enter(clock())

    def tick(self) -> None:
        """Record that an iteration of a ``while`` loop begins."""
        if not STATE.is_watched_thread() or self.entered_s is None:
            return
        now_s = clock()
        self.settle()
        if self.times.began_s is None:
            self.times.began_s = now_s
        elif self.mark_s:
            self.done(now_s, 1, 3)
        self.mark_s = now_s
        if self.hot:
            self.leave()
            self.off()

    def end(self) -> None:
        """Record that a ``while`` loop ended."""
        if (compiling and compiling()) or not STATE.is_watched_thread() or self.entered_s is None:
            return
        self.settle()
        if self.mark_s:
            self.done(clock(), 1, 2)
        self.leave()

    def enter(self, now_s: float) -> None:
        """Begin a pass."""
        stack = STATE.stack
        if not self.entries and stack:
            self.parent = stack[-1].number
        self.depth, self.entered_s, self.current, self.mark_s = len(stack), now_s, 0, 0.0
        self.entries += 1
        stack.append(self)

    def settle(self) -> None:
        """Drop inner loops that were left by ``return`` or an exception."""
        stack = STATE.stack
        while len(stack) > self.depth + 1:
            stack.pop().entered_s = None

    def leave(self) -> None:
        """End a pass, also one that was interrupted."""
        # The SystemExit of a probe passes through here and is not the end of a pass.
        if STATE.stopped or self.entered_s is None:
            return
        spent_s = clock() - self.entered_s
        self.past_s += spent_s
        self.passes += 1
        self.in_passes += self.current
        self.settle()
        if STATE.stack and STATE.stack[-1] is self:
            STATE.stack.pop()
        if STATE.stack:
            inside = STATE.stack[-1].inside
            inside[self.number] = inside.get(self.number, 0.0) + spent_s
        self.entered_s = None
        if self.hot and spent_s < PASS_S:
            self.off()

    def off(self) -> None:
        """Run bare from now on."""
        self.namespace[self.name] = None

    def spent_s(self, now_s: float) -> float:
        """Return the time in all passes, including the current one."""
        return self.past_s + (now_s - self.entered_s if self.entered_s is not None else 0.0)

    def place(self) -> Dict[str, Any]:
        """Return the position of the loop in the source."""
        return {name: self.info[name] for name in ("file", "line", "last", "function", "outermost", "text", "kind")}

    def document(self, now_s: float) -> Dict[str, Any]:
        """Return all data about the loop as builtins."""
        return {
            **self.place(),
            "number": self.number,
            "parent": self.parent,
            "entries": self.entries,
            "passes": self.passes,
            "in_passes": self.in_passes,
            "length": self.full_length(),
            "bare": self.namespace.get(self.name) is None,
            "hot": self.hot,
            "spent_s": self.spent_s(now_s),
            "inside_s": {str(number): spent_s for number, spent_s in self.inside_done.items()},
            "times": self.times.document(),
        }

    def full_length(self) -> Optional[int]:
        """Return the iterations of one whole pass, from its iterable and its bound."""
        length = self.length
        if length is None and self.generator is not None:
            yielding = [loop for loop in STATE.loops if loop.info["yields"]]
            sources = [loop for loop in yielding if loop.info["made_by"] == self.generator]
            length = sources[0].hint if len(sources) == 1 else None
        bound = self.bound.total() if self.bound is not None else None
        return min((candidate for candidate in (length, bound) if candidate is not None), default=None)


def length_of(iterable: Any) -> Optional[int]:
    """Return the number of items if the iterable knows it."""
    try:
        return len(iterable)
    except Exception:  # noqa: BLE001 - user-defined lengths may raise anything
        return None


def _flag(ended: List[bool]) -> Iterator[Any]:
    """Yield nothing, and record that this point was reached."""
    ended.append(True)
    yield from ()


def place_loops(infos: Dict[str, Dict[str, Any]], namespace: Dict[str, Any]) -> None:
    """Give a module the objects that its transformed code refers to."""
    for name, info in infos.items():
        namespace[name] = WatchedLoop(info, namespace, name)


def watch_compiler(module: Any) -> None:
    """Stop watching while PyTorch compiles the user's functions."""
    global compiling  # noqa: PLW0603 - one interpreter has one compiler
    compiler = getattr(module, "compiler", None) or sys.modules.get("torch.compiler")
    compiling = getattr(compiler, "is_compiling", None)
