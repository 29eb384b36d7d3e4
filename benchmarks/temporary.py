"""A folder for all temporary files of a benchmark, which is removed at its end, also after an error."""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager

VARIABLE = "TMPDIR"


@contextmanager
def temporary_files(prefix: str) -> Iterator[None]:
    """Let this process and those it starts make temporary files in one new folder, which is removed afterwards.

    A process that is killed, as the fuzzer does, cannot remove its own files.
    """
    before, variable = tempfile.tempdir, os.environ.get(VARIABLE)
    with tempfile.TemporaryDirectory(prefix=prefix) as folder:
        tempfile.tempdir = os.environ[VARIABLE] = folder
        try:
            yield
        finally:
            tempfile.tempdir = before
            os.environ.pop(VARIABLE)
            if variable is not None:
                os.environ[VARIABLE] = variable
