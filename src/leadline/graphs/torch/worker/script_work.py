"""Time of a step that the script spends outside PyTorch: on an environment, a plot, files or plain Python."""

from typing import Any, Dict, List, NamedTuple, Optional, Sequence

from leadline.graphs.torch.worker.session import ThreadTimes, read_times

WATCHING_S, WATCHING_OP_S = 2.5e-3, 70e-6
"""Cost of a trace outside its handlers: of a step and of an op, at most, in traces of 13 scripts that do nothing else
between their ops."""
LEAST_S = 5e-3
"""Shorter work is not told from the cost of the trace."""


class _Clocks(NamedTuple):
    times: ThreadTimes
    handled_s: float
    handled: int
    loaded_s: float


class ScriptClock:
    """Measures the work between the ends of steps."""

    def __init__(self, recorder: Any) -> None:
        self._recorder = recorder
        self._last: Optional[_Clocks] = None
        self._seconds: List[float] = []
        self._periods: Sequence[int] = ()

    def end_step(self, loaded_s: float, periods: Sequence[int]) -> None:
        """Read the clocks at the end of a step; ``loaded_s`` are the seconds of all batches so far."""
        now = _Clocks(read_times(), self._recorder.handled_s, self._recorder.handled, loaded_s)
        last, self._last = self._last, now
        if last is not None:
            traced_s = now.handled_s - last.handled_s + now.loaded_s - last.loaded_s
            watching_s = WATCHING_S + WATCHING_OP_S * (now.handled - last.handled)
            work_s = now.times.since(last.times).needed_s - traced_s - watching_s
            self._seconds.append(work_s if work_s > LEAST_S else 0.0)
            self._periods = self._periods or periods

    def facts(self) -> Dict[str, Any]:
        """Return ``script_work`` of ``LoopFacts``, or nothing if there is none.

        Work that not every step does is that of the first ones, where counters are 0. It is spread over the periods in
        the loop, as in ``if step % 100 == 0``.
        """
        if not any(self._seconds):
            return {}
        each_s, more_s = min(self._seconds), max(self._seconds) - min(self._seconds)
        often, seldom = min(self._periods, default=1), max(self._periods, default=len(self._seconds))
        work = {
            "step_s": each_s + more_s / min(self._periods, default=len(self._seconds)),
            "least_s": each_s + more_s / seldom,
            "most_s": each_s + more_s / often,
        }
        return {"script_work": work}
