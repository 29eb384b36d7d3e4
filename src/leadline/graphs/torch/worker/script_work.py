"""Time of a step that the script spends outside PyTorch: on an environment, a plot, files or plain Python."""

import importlib
import time
from typing import Any, Dict, List, NamedTuple, Optional, Sequence

from leadline.graphs.torch.worker.session import ThreadTimes, read_times

WATCHING_S, WATCHING_OP_S = 2.5e-3, 70e-6
"""Cost of a trace outside its handlers: of a step and of an op, at most, in traces of 13 scripts that do nothing else
between their ops."""
LEAST_S = 5e-3
"""Shorter work is not told from the cost of the trace."""


LEAST_MEAN_S = 1e-3
"""The same of the mean of many steps."""


class _ImportClock:
    """Processor seconds of imports in this thread: what is imported once is no work of each step."""

    def __init__(self) -> None:
        self.seconds, self._depth = 0.0, 0
        self._find_and_load = importlib._bootstrap._find_and_load  # type: ignore[attr-defined]
        importlib._bootstrap._find_and_load = self._load  # type: ignore[attr-defined]

    def _load(self, name: str, load: Any) -> Any:
        began_s = time.thread_time()
        self._depth += 1
        try:
            return self._find_and_load(name, load)
        finally:
            self._depth -= 1
            if not self._depth:
                self.seconds += time.thread_time() - began_s


class _Clocks(NamedTuple):
    times: ThreadTimes
    handled_s: float
    handled: int
    loaded_s: float
    imported_s: float
    in_modules_s: float


class ScriptClock:
    """Measures the work between the ends of steps, and between two epochs."""

    def __init__(self, recorder: Any) -> None:
        self._recorder = recorder
        self._imports = _ImportClock()
        self._last: Optional[_Clocks] = None
        self._epoch_end: Optional[_Clocks] = None
        self._seconds: List[float] = []
        self.in_modules_s = 0.0
        """Seconds of operations on tensors with data within modules, whose calls the rest of the run leaves out."""
        self._in_modules_s: List[float] = []
        self._epoch_s = 0.0
        self._periods: Sequence[int] = ()

    def end_step(self, loaded_s: float, periods: Sequence[int]) -> None:
        """Read the clocks at the end of a step; ``loaded_s`` are the seconds of all batches so far."""
        now = self._read(loaded_s)
        last, self._last = self._last, now
        if last is not None:
            self._seconds.append(self._work_s(last, now))
            self._in_modules_s.append(now.in_modules_s - last.in_modules_s)
            self._periods = self._periods or periods

    def end_epoch(self, loaded_s: float) -> None:
        """Read the clocks when the training loader has no batch left."""
        self._epoch_end = self._read(loaded_s)

    def begin_epoch(self, loaded_s: float) -> None:
        """Read the clocks when another epoch begins."""
        if self._epoch_end is not None:
            self._epoch_s = self._work_s(self._epoch_end, self._read(loaded_s))

    def _read(self, loaded_s: float) -> _Clocks:
        recorder = self._recorder
        handled = recorder.handled_s, recorder.handled
        return _Clocks(read_times(), *handled, loaded_s, self._imports.seconds, self.in_modules_s)

    @staticmethod
    def _work_s(last: _Clocks, now: _Clocks) -> float:
        traced_s = now.handled_s - last.handled_s + now.loaded_s - last.loaded_s + now.imported_s - last.imported_s
        watching_s = WATCHING_S + WATCHING_OP_S * (now.handled - last.handled)
        work_s = now.times.since(last.times).needed_s - traced_s - watching_s
        return work_s if work_s > LEAST_S else 0.0

    def facts(self, mean_s: Optional[float]) -> Dict[str, Any]:
        """Return ``script_work`` and ``epoch_work_s`` of ``LoopFacts``, as far as there is any.

        ``mean_s`` is that of a step of the rest of the run, if it is known, with all that lies between two epochs.
        Work that not every step does is that of the first ones, where counters are 0. It is spread over the periods in
        the loop, as in ``if step % 100 == 0``.
        """
        if mean_s is not None:
            step_s = mean_s + min(self._in_modules_s, default=0.0)
            names = ("step_s", "least_s", "most_s")
            return {"script_work": dict.fromkeys(names, step_s)} if step_s > LEAST_MEAN_S else {}
        facts: Dict[str, Any] = {"epoch_work_s": self._epoch_s} if self._epoch_s else {}
        if not any(self._seconds):
            return facts
        each_s, more_s = min(self._seconds), max(self._seconds) - min(self._seconds)
        often, seldom = min(self._periods, default=1), max(self._periods, default=len(self._seconds))
        facts["script_work"] = {
            "step_s": each_s + more_s / min(self._periods, default=len(self._seconds)),
            "least_s": each_s + more_s / seldom,
            "most_s": each_s + more_s / often,
        }
        return facts
