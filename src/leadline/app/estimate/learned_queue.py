"""Fit a wait model to a system's accounting, and cache it for the next question."""

from collections.abc import Sequence
from dataclasses import dataclass

from leadline.app import settings
from leadline.core.queues import AccountedJob, QueueWait
from leadline.core.units import DAY_S
from leadline.training.array_files import keep_cached, load_cached
from leadline.training.queue_wait import QueueWaitModel, fit_queue_wait_model, load_queue_wait_model

VALID_S = DAY_S
"""Lifetime of a cached wait model: the users of a system change from day to day."""


@dataclass(frozen=True, slots=True)
class LearnedQueue:
    """The jobs of a system as known at ``now_s``, and the wait model fitted to them."""

    learned: QueueWaitModel
    accounting: Sequence[AccountedJob]
    now_s: float

    def waits(self, jobs: Sequence[AccountedJob]) -> list[QueueWait]:
        """Predict the wait of each job, as if it alone were submitted now."""
        return self.learned.predict(self.accounting, jobs, self.now_s)


def learn_queue(system: str, jobs: Sequence[AccountedJob]) -> LearnedQueue:
    """Return the queue one second after the last event in the accounting.

    The fitted model is cached for ``VALID_S``.

    Raises:
        InvalidInput: too few jobs started.
    """
    moments = [(job.submitted_s, job.started_s, job.ended_s) for job in jobs]
    # One second later, so that no job of the accounting is submitted at the same moment.
    now_s = max(at_s for moment in moments for at_s in moment if at_s is not None) + 1.0
    path = settings.data_dir() / "waits" / f"{system.lower().replace('/', '-')}.npz"
    learned = load_cached(path, load_queue_wait_model)
    if learned is None or not 0 <= now_s - learned.learned_until_s < VALID_S:
        learned = fit_queue_wait_model(jobs, now_s)
        keep_cached(path, learned.dump())
    return LearnedQueue(learned, jobs, now_s)
