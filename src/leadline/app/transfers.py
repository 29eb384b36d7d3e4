"""How long bringing a checkpoint to another system takes, by the copies that the plane's journal tells of."""

from collections.abc import Callable

from leadline.core.estimate import Interval
from leadline.core.plane import Attempt, Event, Job, Kind
from leadline.estimators.transfer import Copy, learned
from leadline.execution.plane.journal import PlaneJournal


def staging_s(
    job: Job, system: str, *, journal: PlaneJournal, size_bytes: Callable[[Job, Attempt], float | None]
) -> Interval | None:
    """Return what a job waits for its checkpoint if it goes on at a system; nothing where none has to be brought.

    ``None`` is not known: how large it is, or how fast copies are from where it lies.
    """
    source = job.carried_to(system)
    if source is None:
        return Interval(0.0, 0.0, 0.0)
    size = size_bytes(job, source)
    if size is None:
        return None
    made = journal.events(kinds=[Kind.STAGED])
    between = [one for one in made if (one.said.get("from"), one.said.get("to")) == (source.place.system, system)]
    model = learned([Copy(_figure(one, "moved_bytes"), _figure(one, "elapsed_s")) for one in between])
    return model.expected_s(size) if model is not None else None


def _figure(event: Event, name: str) -> float:
    value = event.said.get(name)
    return float(value) if isinstance(value, int | float) else 0.0
