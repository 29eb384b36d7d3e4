"""Show how far a campaign is: one line that moves on a terminal, and now and then a plain line elsewhere."""

import sys
import time
from collections import Counter
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Self

from rich.progress import BarColumn, Progress, TaskID, TextColumn

from leadline.app.campaign_runs import Entry, Tally, format_amount
from leadline.core.campaigns import BudgetUnit
from leadline.core.jobs import JobState
from leadline.core.units import format_duration
from leadline.interfaces.cli.face import err

EVERY_S = 30.0
"""How often a plain line is written at most."""
SHOWN_FAILURES = 3
"""So many runs that end in the same way are named as they do; all of them are counted at the end."""


def format_money(dollars: float) -> str:
    """Write what runs cost; less than a cent is not worth its digits."""
    return format_amount(dollars, BudgetUnit.USD) if dollars >= 0.01 or not dollars else "< $0.01"


class CampaignProgress(AbstractContextManager["CampaignProgress"]):
    """Hears where a campaign stands, and shows it on stderr; ``unit`` is what its costs are counted in."""

    def __init__(self, unit: BudgetUnit) -> None:
        self.unit = unit
        self.console = err()
        self._bar: Progress | None = None
        self._task: TaskID | None = None
        self._written_s = time.monotonic()
        self._written_at = -1
        self._interrupts, self._answered = 0, 0
        self._failures: Counter[str] = Counter()

    def interrupted(self) -> None:
        """Remember a Ctrl-C, to be answered outside its handler."""
        self._interrupts += 1

    def __enter__(self) -> Self:
        if sys.stderr.isatty():
            columns = (BarColumn(bar_width=24), TextColumn("{task.description}"))
            self._bar = Progress(*columns, console=self.console, transient=True)
            self._task = self._bar.add_task("starting", total=None)
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def __call__(self, tally: Tally, ended: Entry | None) -> None:
        """Take in where the campaign stands, and the run that ended just now."""
        if self._interrupts > self._answered:
            self._answered = self._interrupts
            self._answer(tally.running)
        if ended is not None and ended.state is not JobState.COMPLETED:
            self._say_failure(ended)
        if self._bar is not None and self._task is not None:
            total = max(tally.planned, 1)
            self._bar.update(self._task, completed=tally.ended, total=total, description=self.line(tally))
        elif self._is_time(tally):
            self._written_s, self._written_at = time.monotonic(), tally.ended
            self.console.print(self.line(tally), markup=False, soft_wrap=True)

    def line(self, tally: Tally) -> str:
        """Return one line: ``12 of 40 runs, 1 failed · 3m 20s left · 1m 05s of 20m 00s spent · $0.02``."""
        parts = [f"{tally.ended} of {tally.planned} runs" + (f", {tally.failed} failed" if tally.failed else "")]
        if tally.left_s:
            about = "at least " if tally.unknown else ""
            parts.append(f"{about}{format_duration(tally.left_s / max(tally.running, 1))} left")
        spent = format_amount(tally.spent, self.unit) if tally.spent else "nothing"
        parts.append(
            f"{spent} spent" if tally.budget is None else f"{spent} of {format_amount(tally.budget, self.unit)} spent"
        )
        if tally.money is not None and self.unit is not BudgetUnit.USD:
            parts.append(format_money(tally.money))
        return " · ".join(parts)

    def _is_time(self, tally: Tally) -> bool:
        """Write the first line, the last, and one now and then."""
        if tally.ended == self._written_at:
            return False
        return self._written_at < 0 or tally.ended == tally.planned or time.monotonic() - self._written_s >= EVERY_S

    def _answer(self, running: int) -> None:
        """Say what becomes of a Ctrl-C."""
        runs = f"the {running} runs" if running > 1 else "the run"
        if running and self._interrupts == 1:
            self.console.print(f"no more runs start; waiting for {runs} at work: Ctrl-C again ends them")
        elif running:
            self.console.print(f"ending {runs} at work")

    def _say_failure(self, entry: Entry) -> None:
        why = entry.outcome.reason if entry.outcome and entry.outcome.reason else ""
        code = entry.outcome.exit_code if entry.outcome else None
        how = why or (f"exit code {code}" if code is not None else "")
        self._failures[entry.state] += 1
        if self._failures[entry.state] > SHOWN_FAILURES:
            return
        self.console.print(
            f"run {entry.key} ended {entry.state.value}{f' ({how})' if how else ''}", markup=False, soft_wrap=True
        )
