"""Run a command for its first units of work only, under the measuring wrapper."""

import tempfile
from collections.abc import Sequence
from pathlib import Path

from leadline.core.errors import InvalidInput
from leadline.core.jobs import JobSpec, ResourceSpec
from leadline.execution.local import wait_for
from leadline.execution.processes import start_attached
from leadline.execution.wrapper.instruments import Enough
from leadline.execution.wrapper.outcome import Outcome, read_outcome
from leadline.execution.wrapping import wrapped


def run_probe(command: Sequence[str], *, enough: Enough, limit_s: float, output: int | None = None) -> Outcome:
    """Run ``command`` until ``enough`` was seen or ``limit_s`` is over, and return what the wrapper wrote down.

    ``output`` is a file descriptor that takes the command's output in place of stdout.

    Raises:
        InvalidInput: the command cannot be started.
    """
    spec = JobSpec("probe", tuple(command), ResourceSpec(walltime_s=limit_s), watched=True)
    with tempfile.TemporaryDirectory(prefix="leadline-probe-") as folder:
        result = Path(folder, "outcome.json")
        words = wrapped(spec, result, enough=enough)
        wait_for(start_attached(words, stdout=output, own_session=True))
        outcome = read_outcome(result)
    if outcome.exit_code == 127 and outcome.pid is None:
        raise InvalidInput(outcome.reason)
    return outcome
