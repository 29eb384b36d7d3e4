"""Count the steps of the rest of a run in a fork of the traced process that calculates nothing.

The script's own code goes on, so its loops, limits, flags and schedules decide. Models give results of the shapes they
had before, optimizers and backward passes do nothing, and loaders give a batch again. Values of tensors are guesses, so
a second fork runs with the opposite ones. If both make the same steps, no value decides how many there are.
"""

import contextlib
import itertools
import math
import mmap
import os
import resource
import signal
import struct
import sys
import time
import traceback
from typing import Any, Callable, Dict, Iterator, List, NamedTuple, Optional, Set, Tuple

import torch
from torch.utils._pytree import tree_flatten

from leadline.graphs.torch.worker import conditions, confinement, fake_tensors, scratch
from leadline.graphs.torch.worker.batches import batch_tensors
from leadline.graphs.torch.worker.ended_runs import CountedRun, Guesses, StepCounts
from leadline.graphs.torch.worker.libraries import trainer_codes, user_frames
from leadline.graphs.torch.worker.loops import loops_of
from leadline.graphs.torch.worker.projection import Projection
from leadline.graphs.torch.worker.recorder import Recorder
from leadline.graphs.torch.worker.repeated_calls import describe_call, make_result, shapes_of
from leadline.graphs.torch.worker.run_progress import RunProgress
from leadline.graphs.torch.worker.session import TraceSession, read_times
from leadline.graphs.torch.worker.silent_steps import stop_calculating
from leadline.graphs.torch.worker.training_code import script_folder

PROJECTED_S, LOOKED_S, TICK_S = 2.0, 6.0, 0.02
"""Processor seconds after which a fork that would take too long is ended, if it tells how long the run is and if not,
and seconds between two looks at it."""
ROUNDS = 2.1
"""Passes of the outermost loop, as epochs, that a fork makes if they end soon: it then twice did what comes between."""
BUSY_FACTOR = 4
"""Wall-clock limit of a fork over its limit in processor seconds."""
RUNNING, ENDED, FAILED, FAILED_LATER = range(4)
UNCLEAR = -1
"""Steps that cannot be told."""
FIELDS = struct.Struct("<qqqqddqdddd")
"""What a fork writes down at each step."""
TEXT_AT, LONGEST_TEXT = 2 * FIELDS.size, 600
"""Place and bytes of the text that tells why the first fork failed."""
WORK_EVERY = 16
"""Steps after which the clocks are read again."""
LEAST_STEPS, WATCHING_S = 20, 0.25e-3
"""Steps from which a fork tells the script's own work, and what it measures of three scripts that have none."""


class ForkProgress(NamedTuple):
    """State of a fork, its steps and evaluated batches, whether it read a value that it guessed, and processor seconds.

    ``work_s``: Seconds of the script itself until ``work_steps``, without those of loading, of PyTorch's operations and
    of the trace. ``projection``: The steps of the whole run, as far as the course of the fork tells.
    """

    state: int
    steps: int
    evaluated: int
    has_guessed: bool
    used_s: float
    work_s: float
    work_steps: int
    rounds: float
    projection: Optional[Projection]


class RestOfRun:
    """The forks of a trace, of which there are none before ``begin``."""

    def __init__(self, session: TraceSession, recorder: Recorder) -> None:
        self._session, self.recorder = session, recorder
        self._fields = mmap.mmap(-1, TEXT_AT + LONGEST_TEXT)
        self._children: List[int] = []
        self._around: Set[Tuple[Any, int]] = set()
        """Loops of the user around the traced steps, by code and line."""
        self._trainers: Set[Any] = set()
        """Code of the trainers around them."""
        self._turn = -1
        self._later = ENDED
        self._steps_before = 0
        self.place: Optional[int] = None
        """Which of the forks this process is."""
        self.counts = StepCounts()
        self.evaluated = self.called = 0
        """Batches of loaders that were read without gradients after a first step, and calls of models in evaluation."""
        self._passed_s = self.slept_s = self._handled_s = self._call_s = self._work_s = 0.0
        """Seconds of loading and of calls that did not run, those that the script would sleep, those of operations
        before the fork, and those of a call of an operation besides them."""
        self._handled = 0
        """Operations before the fork, and those in what is passed."""
        self._work_steps = 0
        self._course = RunProgress()
        self._began = read_times()
        self._is_within = False
        """A call that no earlier one tells runs."""
        self._seen: List[Any] = []
        self._results: Dict[Any, Tuple[Any, ...]] = {}

    @property
    def is_fork(self) -> bool:
        """Return whether this process only counts steps."""
        return self.place is not None

    @property
    def has_begun(self) -> bool:
        """Return whether there are forks, which know the end of the script even if it ends in the trace."""
        return bool(self._children)

    def begin(self) -> None:
        """Let forks go on here, once. They and the traced process all return."""
        if self._children or self.is_fork or not self._session.count_s:
            return None
        if self._session.real and not self._session.calculates:
            return None  # it noticed late that nothing is simulated
        self._steps_before = self.counts.total() or 0
        self._around = {
            (frame.f_code, loop.lineno) for frame in user_frames(script_folder()) for loop in loops_of(frame)
        }
        self._trainers = set(trainer_codes())
        turn, self._turn = os.pipe()
        for place in range(2):
            child = os.fork()
            if not child:
                os.close(self._turn)
                return self._become_fork(place, turn)
            self._children.append(child)
        os.close(turn)
        return None

    def _become_fork(self, place: int, turn: int) -> None:
        """Go on as a fork. The second one waits until it is needed."""
        confinement.end_with_parent()
        if place and not os.read(turn, 1):
            os._exit(0)
        os.close(turn)
        scratch.copy_writes(str(place))
        most_s = math.ceil(self._session.count_s)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_CPU, (most_s, 2 * most_s))
        for stream in (1, 2):
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream)
        if "multiprocessing.util" in sys.modules:  # its proxies connect again
            sys.modules["multiprocessing.util"]._run_after_forkers()
        torch.set_num_threads(1)  # the threads of the traced process are not here
        self.place, self._session.limit_s, self._session.process = place, float("inf"), os.getpid()
        self._call_s = self.recorder.calling_cost_s()
        self._handled_s, self._handled, self._began = self.recorder.handled_s, self.recorder.handled, read_times()
        fake_tensors.GUESSED[0] = bool(self._session.calculates)
        conditions.guess_otherwise(rising=not place)
        fake_tensors.VARIED[:] = [itertools.count()] if place else []
        stop_calculating(self)

    def count(self, optimizer: int) -> None:
        """Count a step of an optimizer, or a backward pass of a script without one."""
        self.counts.add(optimizer)
        if self.is_fork:
            used_s, total = time.process_time(), self.counts.total()
            if total is not None and self._course.is_due(total, used_s):
                with self.passing():
                    self._course.add(total, used_s, script_folder())
            self._report(RUNNING)
            if used_s > self._session.count_s:  # the kernel's limit counts clock ticks
                os._exit(0)

    def count_evaluation(self) -> None:
        """Count a batch that is evaluated, if it is one."""
        self.evaluated += bool(self.counts.steps) and not torch.is_grad_enabled()

    def _report(self, state: int) -> None:
        total = self.counts.total()
        if state != RUNNING or not self.counts.steps % WORK_EVERY:
            needed_s = read_times().since(self._began).needed_s
            traced_s = self.recorder.handled_s - self._handled_s
            traced_s += (self.recorder.handled - self._handled) * self._call_s
            self._work_s = needed_s + self.slept_s - self._passed_s - traced_s
            self._work_steps = total or 0
        guessed, used_s = fake_tensors.GUESSED[0], time.process_time()
        made = UNCLEAR if total is None else total, self.evaluated or self.called
        values = state, *made, guessed, used_s, self._work_s, self._work_steps, self._course.rounds
        limits = (self._course.projection if total is not None else None) or (0.0, 0.0, 0.0)
        FIELDS.pack_into(self._fields, (self.place or 0) * FIELDS.size, *values, *limits)

    def _progress(self, place: int) -> ForkProgress:
        *values, low, likely, high = FIELDS.unpack_from(self._fields, place * FIELDS.size)
        return ForkProgress._make([*values, Projection(low, likely, high) if high else None])

    def wait(self, read: Optional[float], *, trains_later: bool) -> Optional[CountedRun]:
        """Return the steps that the forks count, ``None`` if they stay unknown.

        ``read`` are those of the source. A failure after the loops of the traced steps leaves no step out, unless the
        script ``trains_later``, beyond them.
        """
        self._later = FAILED if trains_later else ENDED
        found = self._result(0, read)
        if found.state == ENDED and found.steps != UNCLEAR and (found.steps == read or not found.has_guessed):
            return CountedRun(found.steps, Guesses.NONE, found.evaluated)
        other = None
        if found.state != RUNNING and found.steps != UNCLEAR:
            os.write(self._turn, b"1")
            other = self._result(1, found.steps if found.state == ENDED else read)
        return self._compare(found, other, read)

    def _is_inside(self, error: BaseException) -> bool:
        """Return whether an error left a loop that was around the traced steps, as far as these are known."""
        left = list(traceback.walk_tb(error.__traceback__))
        places = {(frame.f_code, loop.lineno) for frame, line in left for loop in loops_of(frame, line)}
        if self._around:
            return not places.isdisjoint(self._around)
        return not self._trainers or any(frame.f_code in self._trainers for frame, _ in left)

    def _note_failure(self, found: ForkProgress) -> None:
        text = self._fields[TEXT_AT:].rstrip(b"\0").decode(errors="ignore")
        self._session.note(f"without calculations the run fails after {found.steps} steps, as it may for real: {text}")

    def _compare(
        self, found: ForkProgress, other: Optional[ForkProgress], read: Optional[float]
    ) -> Optional[CountedRun]:
        """Return the steps by the results of both forks, of which the second may not have run."""
        ended = [each for each in (found, other) if each is not None and each.state == ENDED]
        if len(ended) == 2:
            is_same = ended[0].steps == ended[1].steps
            return CountedRun(found.steps, Guesses.ALIKE if is_same else Guesses.DIFFERENT, found.evaluated)
        if found.state == ENDED and other is not None and other.state == RUNNING and other.steps <= found.steps:
            return CountedRun(found.steps, Guesses.ONE, found.evaluated)  # the other one was too slow
        if found.state == FAILED and ended:  # the first may have failed by its guesses
            return CountedRun(ended[0].steps, Guesses.ONE, ended[0].evaluated)
        if found.state == FAILED:
            self._note_failure(found)
        if found.state == RUNNING and found.projection is not None:
            return CountedRun(found.steps, Guesses.PROJECTED, 0, found.projection)
        if found.state != ENDED and read is not None and found.steps > read:
            return CountedRun(found.steps, Guesses.MORE)
        return CountedRun(found.steps, Guesses.DIFFERENT, found.evaluated) if ended else None

    def work_s(self) -> Optional[float]:
        """Return the seconds of a step that the script spends outside PyTorch; ``None`` if too few were made."""
        now = self._progress(0)
        made = now.work_steps - self._steps_before
        return max(now.work_s / made - WATCHING_S, 0.0) if made >= LEAST_STEPS else None

    def _result(self, place: int, expected: Optional[float]) -> ForkProgress:
        """Return the result of a fork once it has ended, or would take too long for the steps expected."""
        began_s, first = time.monotonic(), None
        with contextlib.suppress(ChildProcessError):  # the script has waited for it
            while os.waitpid(self._children[place], os.WNOHANG) == (0, 0):
                now = self._progress(place)
                first = first or (now if now.used_s else None)
                is_slow = (
                    expected is not None
                    and now.used_s > _looked_s(now, expected)
                    and _end_s(first, now, expected) > self._session.count_s
                )
                if is_slow or time.monotonic() - began_s > BUSY_FACTOR * self._session.count_s:
                    os.kill(self._children[place], signal.SIGKILL)
                time.sleep(TICK_S)
        progress = self._progress(place)
        if progress.state != FAILED_LATER:
            return progress
        if self._later == ENDED and not place:
            self._note_failure(progress)
        return progress._replace(state=self._later)

    def run(self, script: Callable[[], bool], describe: Callable[[BaseException], Dict[str, Any]]) -> bool:
        """Run a script and return what it returns. A fork ends with it, and tells a failure as ``describe`` does."""
        try:
            result = script()
        except BaseException as error:
            if self.is_fork:
                failure = describe(error)
                reason = failure["reason"].rpartition("; ")[0] or failure["reason"]
                text = f"{failure['location'] or 'the script'} raised {reason}"
                if not self.place:
                    self._fields[TEXT_AT:] = text.encode(errors="replace")[:LONGEST_TEXT].ljust(LONGEST_TEXT, b"\0")
                self._report(FAILED if self._is_inside(error) else FAILED_LATER)
                os._exit(0)
            raise
        if self.is_fork:
            self._report(ENDED)
            os._exit(0)
        return result

    @contextlib.contextmanager
    def passing(self) -> Iterator[None]:
        """Leave what happens here out of the script's own work."""
        began_s, handled_s, passed_s = time.thread_time(), self.recorder.handled_s, self._passed_s
        others = self.recorder.handled - self._handled
        try:
            yield
        finally:
            self._handled = self.recorder.handled - others
            self._passed_s = passed_s + time.thread_time() - began_s - (self.recorder.handled_s - handled_s)

    def call(self, original: Any, module: Any, args: Any, kwargs: Any) -> Any:
        """Return a result of the shapes that a module gave for such arguments before."""
        if self._is_within:  # by the values of its arguments, a part may give another shape
            return original(module, *args, **kwargs)
        self.called += self.called > 0 and not (module.training or torch.is_grad_enabled())
        with self.passing():
            call = describe_call(module, args, kwargs, self._describe)
            known = self._results.get(call)
            if known is not None:
                return known[0] if self._session.calculates else make_result(*known)
        self._is_within, host_s = True, self.recorder.host_s
        try:
            result = original(module, *args, **kwargs)
        finally:
            self._is_within = False
            self._passed_s += self.recorder.host_s - host_s  # the traced steps have it
        if self._session.calculates:
            self._results[call] = (result,)
            return result
        leaves, structure = tree_flatten(result)
        shapes = shapes_of(leaves)
        if shapes is not None:
            self._results[call] = shapes, structure
        return result

    def _describe(self, value: Any) -> Any:
        """Describe an argument by the shapes of its tensors or of itself; without any, it is described by itself."""
        shape = getattr(value, "shape", None)
        if isinstance(shape, tuple):
            is_number = not shape and callable(getattr(value, "item", None))
            return type(value), value.item() if is_number else tuple(shape)
        tensors = batch_tensors(value) or batch_tensors(getattr(value, "__dict__", {}))
        shapes: List[Any] = [tuple(tensor.shape) for tensor in tensors]
        if not shapes:
            self._seen.append(value)  # its identity is not given to another object
        return type(value), *(shapes or [id(value)])


def _looked_s(now: ForkProgress, expected: float) -> float:
    """Return the processor seconds after which a fork that takes too long has told what it can."""
    if now.projection is None:
        return LOOKED_S
    if now.projection.steps is not None:
        is_near = now.rounds < ROUNDS and now.used_s * ROUNDS <= LOOKED_S * now.rounds
        return LOOKED_S if is_near else PROJECTED_S
    return LOOKED_S if now.projection.holds(expected) else math.inf


def _end_s(first: Optional[ForkProgress], now: ForkProgress, expected: float) -> float:
    """Return the processor seconds at which the expected steps will be made. The first one may be slow."""
    if first is None or now.steps <= first.steps:
        return now.used_s
    return now.used_s + (now.used_s - first.used_s) / (now.steps - first.steps) * (expected - now.steps)
