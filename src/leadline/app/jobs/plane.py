"""The verb ``plane``: run it as an ordinary user's process, one at a time."""

import math
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import cache, partial

from leadline.app import settings
from leadline.app.composition import process_runner
from leadline.app.jobs.journal import note_use, open_journal, plane_dir, plane_lock, used_systems
from leadline.app.jobs.plane_advisor import PlaneAdvisor, read_local_memory
from leadline.app.jobs.plane_retraining import BackgroundRetraining
from leadline.app.jobs.plane_waits import BackgroundWaits
from leadline.app.jobs.schedulers import build_scheduler, close_scheduler, full_system_name
from leadline.app.jobs.staged_copies import staged_copies
from leadline.app.machines.targets import LOCAL
from leadline.core.errors import LeadlineError
from leadline.core.estimate import Interval
from leadline.core.plane import Attempt, Job
from leadline.core.ports import Catalog
from leadline.core.units import KIB
from leadline.estimators.adaptive_transfer import PathState, predict_transfer
from leadline.execution.plane.decide import decide
from leadline.execution.plane.diagnose import diagnose
from leadline.execution.plane.engine import Plane
from leadline.execution.plane.journal import PlaneJournal
from leadline.execution.plane.stager import CopyRequest
from leadline.execution.schedulers.port import Scheduler
from leadline.files.lock import file_lock
from leadline.history.sqlite import SqliteHistory
from leadline.training.shipped_files import shipped_live_table

EXIT_S = 2.0
"""Time that running rounds have to end when this process ends. Lost answers are looked up by the next plane."""


def estimate_staging_s(
    job: Job, system: str, *, journal: PlaneJournal, request: Callable[[Job, Attempt, str], CopyRequest | None]
) -> Interval | None:
    """Return the time to copy a job's checkpoint to a system, from earlier copies and a probe.

    It is 0 if nothing must be copied, and ``None`` if the size is unknown.
    """
    source = job.checkpoint_source(system)
    if source is None:
        return Interval(0.0, 0.0, 0.0)
    copy = request(job, source, system)
    if copy is None:
        return None
    copies = staged_copies(journal, source.place.system, system)
    path = PathState((math.inf,) * copy.competing, copy.probe)
    return predict_transfer(max(copy.size_bytes, KIB), copies, path).elapsed_s


@contextmanager
def hold_plane(catalog: Catalog, *, report: Callable[[str], None] = lambda _: None) -> Iterator[Plane | None]:
    """Yield the plane, locked by this process; ``None`` while another process runs it.

    ``report`` is called with results of retraining and reasons for missing predictions.

    Raises:
        LeadlineError: the journal cannot be used.
    """
    with ExitStack() as opened, open_journal() as journal, file_lock(plane_lock()) as locked:
        if not locked:
            yield None
            return

        def admitted(system: str) -> Scheduler:
            scheduler = build_scheduler(system, catalog, plane_dir())
            if system.casefold() != LOCAL:
                note_use(system)
            opened.callback(close_scheduler, scheduler)
            return scheduler

        learning = BackgroundRetraining(report=report)
        advisor = PlaneAdvisor(
            catalog,
            SqliteHistory(settings.history_path()),
            shipped_live_table(),
            local_memory=cache(lambda: read_local_memory(process_runner())),
            waits=BackgroundWaits(report=report),
            finished=learning.count_runs,
        )
        names = [full_system_name(folded, catalog) for folded in used_systems()]
        search = {name for name in names if name is not None} - journal.searched_systems()
        plane = Plane(
            journal, admitted, advisor, diagnose=diagnose, decide=decide, news=learning.news, search=search
        )  # fmt: skip
        # The plane needs the advisor, and this function the stager of the plane: it can only be set afterwards.
        advisor.staging = partial(estimate_staging_s, journal=journal, request=plane.stager.request)
        yield plane
        try:
            plane.finish(EXIT_S)
        except LeadlineError as error:
            report(str(error))
