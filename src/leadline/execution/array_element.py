"""Run one element of a job array: ``python -P -m leadline.execution.array_element LOOKUP INDEX``.

The file LOOKUP is a JSON list; an element's entry holds the wrapper's ``arguments``, the ``environment`` to add, and
the ``log`` that takes the output.
"""

import json
import os
import sys
from pathlib import Path

from leadline.execution.wrapper.command import main


def run_element(lookup: Path, index: int) -> int:
    """Run the element measured, and return its exit code."""
    element = json.loads(lookup.read_text(encoding="utf-8"))[index]
    os.environ.update(element["environment"])
    log = os.open(element["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    for stream in (1, 2):
        os.dup2(log, stream)
    os.close(log)
    return main(element["arguments"])


if __name__ == "__main__":
    sys.exit(run_element(Path(sys.argv[1]), int(sys.argv[2])))
