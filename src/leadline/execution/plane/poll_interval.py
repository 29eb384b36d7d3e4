"""How often the plane asks, and how long it waits for an answer before it concludes anything."""

from dataclasses import dataclass, field

from leadline.execution.clock import Clock

LEAST_PAUSE, MOST_PAUSE = 5.0, 500.0
"""Pauses between two questions, in terms of the time that answers took of late."""
OF_LATE = 0.5
"""What the last answer counts in that time, beside all those before it: one may be slow by chance."""
LEAST_REST = 25.0
"""The same in terms of the CPU that the answer took here: so the plane takes a twenty-fifth of a core at most."""


@dataclass(frozen=True, slots=True)
class PollIntervals:
    """All in seconds.

    Between questions to a scheduler ``first`` to ``last`` pass, growing while nothing changes: at least 5 times as
    long as answers took of late, so that a slow one is not burdened, and at most 500 times, so that a quick one is
    not idle; and 25 times as long as the last kept this machine at work. ``unreachable`` is the longest pause after
    it did not answer. ``reports`` pass between readings of what jobs write, ``decide`` between decisions about one
    job of which nothing new is known. A submission whose answer was lost is taken for never arrived after
    ``grace``; how a job ended that did not complete is taken from its wrapper alone after ``settle``; a job that is
    named nowhere is given up for lost after ``lost``. No attempt is put off by more than ``delay``, whatever the
    clock on the wall says meanwhile.
    """

    first: float = 1.0
    last: float = 30.0
    unreachable: float = 300.0
    reports: float = 15.0
    decide: float = 300.0
    grace: float = 60.0
    settle: float = 30.0
    lost: float = 3600.0
    delay: float = 1800.0


DEFAULT_INTERVALS = PollIntervals()


@dataclass(slots=True)
class PollSchedule:
    """When one scheduler is asked next: soon after something changed, ever more rarely while nothing does."""

    clock: Clock
    patience: PollIntervals
    interval_s: float = 0.0
    due_s: float = 0.0
    usual_s: float = 0.0
    """How long answers took of late."""
    failures: int = 0
    said: str = field(default="")

    @property
    def due(self) -> bool:
        """Whether it is time to ask."""
        return self.clock.monotonic_s() >= self.due_s

    @property
    def wait_s(self) -> float:
        """Seconds until it is time to ask."""
        return max(0.0, self.due_s - self.clock.monotonic_s())

    def hurry(self) -> None:
        """Something was changed: ask soon."""
        self.interval_s = self.patience.first
        if not self.failures:
            self.due_s = min(self.due_s, self.clock.monotonic_s() + self.interval_s)

    def answered(self, *, changed: bool, took_s: float | None = None, cpu_s: float = 0.0) -> bool:
        """Note an answer that took so long, and so much of a CPU; return whether it is the first after silence.

        ``None`` is for what took no time, as there was nothing to ask.
        """
        back, self.failures, self.said = self.failures > 0, 0, ""
        if took_s is not None:
            self.usual_s = OF_LATE * took_s + (1.0 - OF_LATE) * (self.usual_s or took_s)
        longest_s = max(self.patience.first, min(self.patience.last, MOST_PAUSE * self.usual_s))
        self.interval_s = self.patience.first if changed or back else min(1.5 * self.interval_s, longest_s)
        self.interval_s = max(self.interval_s, self.patience.first, LEAST_PAUSE * self.usual_s, LEAST_REST * cpu_s)
        self.due_s = self.clock.monotonic_s() + self.interval_s
        return back

    def failed(self, why: str) -> bool:
        """Note that no answer came; return whether that is news."""
        news, self.said = why != self.said, why
        self.failures += 1
        pause_s = min(self.patience.first * 2.0**self.failures, self.patience.unreachable)
        self.due_s = self.clock.monotonic_s() + pause_s
        return news
