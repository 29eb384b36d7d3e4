"""The verb ``plane``: run it, one process at a time, as an ordinary user's process."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import cache, partial
from pathlib import Path

from leadline.app import settings
from leadline.app.advisor import PlaneAdvisor
from leadline.app.composition import process_runner
from leadline.app.hand_over import open_journal, plane_dir
from leadline.app.plane_learning import Learning
from leadline.app.plane_places import own_machine
from leadline.app.plane_waits import QueueWaits
from leadline.app.schedulers import let_go, scheduler_of
from leadline.app.transfers import staging_s
from leadline.core.ports import Catalog
from leadline.execution.lock import holder, only_one
from leadline.execution.plane.decide import decide
from leadline.execution.plane.diagnose import diagnose
from leadline.execution.plane.engine import Plane
from leadline.execution.plane.patience import USUAL, Patience
from leadline.execution.scheduler import Scheduler
from leadline.history.sqlite import SqliteHistory
from leadline.training.live_tables import shipped_live_table


@contextmanager
def hold_plane(
    catalog: Catalog, *, patience: Patience = USUAL, told: Callable[[str], None] = lambda _: None
) -> Iterator[Plane | None]:
    """Yield the plane, held by this process alone; ``None`` while another process holds it.

    ``told`` hears what was learned of finished jobs, when it was.

    Raises:
        LeadlineError: the journal cannot be used.
    """
    with ExitStack() as opened, open_journal() as journal, only_one(_lock()) as mine:
        if not mine:
            yield None
            return

        def admitted(system: str) -> Scheduler:
            scheduler = scheduler_of(system, catalog, plane_dir())
            opened.callback(let_go, scheduler)
            return scheduler

        learning = Learning(told=told)
        advisor = PlaneAdvisor(
            catalog,
            SqliteHistory(settings.history_path()),
            shipped_live_table(),
            here=cache(lambda: own_machine(process_runner())),
            waits=QueueWaits(told=told),
            finished=learning.take_in,
        )
        plane = Plane(
            journal, admitted, advisor, diagnose=diagnose, decide=decide, patience=patience, news=learning.news
        )
        advisor.staging = partial(staging_s, journal=journal, size_bytes=plane.stager.size_bytes)
        yield plane


def runner() -> str | None:
    """Return the process that runs the plane, as ``process 12 on node1 since 14:02``; ``None`` if none does."""
    return holder(_lock())


def _lock() -> Path:
    return plane_dir() / "lock"
