"""One rank of a distributed job, with nobody on the other side of its collectives."""

from leadline.graphs.torch.worker.session import Session


def install(session: Session) -> None:
    """Leave a job of one process as it is."""
