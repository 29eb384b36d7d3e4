"""Change the limit of a command that runs: a file beside its outcome, which its wrapper reads whenever it looks."""

from pathlib import Path

from leadline.core.documents import dump, load
from leadline.core.errors import InvalidInput
from leadline.execution.wrapper.outcome import write_whole


def control_path(result: Path) -> Path:
    """Return the control file of the command whose outcome goes to ``result``."""
    return result.with_suffix(".control")


def set_walltime(result: Path, walltime_s: float) -> None:
    """Give a running command another limit, counted from its start."""
    write_whole(dump({"walltime_s": walltime_s}) + "\n", control_path(result))


def asked_walltime_s(control: Path) -> float | None:
    """Return the limit that was asked for meanwhile; ``None`` if none was, or the file holds something else."""
    try:
        return load(control.read_bytes(), dict[str, float], what=str(control)).get("walltime_s")
    except (OSError, InvalidInput):
        return None
