"""Start the worker by path, inside an interpreter that need not have Leadline installed.

Run as ``python bootstrap.py REQUEST.json``. Bare package shells let the worker's modules import each other by their
usual names, without the ``site-packages`` that Leadline lives in ever reaching the user's ``sys.path``.
"""

import importlib
import json
import os
import sys
import types
from pathlib import Path

SHELLS = ("leadline", "leadline.graphs", "leadline.graphs.torch")


def main(request_path: str) -> None:
    """Read the request, create the package shells, and start the worker in a confined process."""
    worker = Path(__file__).resolve().parent
    root = worker.parents[2]
    for name in SHELLS:
        shell = types.ModuleType(name)
        shell.__path__ = [str(root.joinpath(*name.split(".")[1:]))]
        sys.modules[name] = shell
    if sys.path and sys.path[0] == str(worker):
        del sys.path[0]  # else the worker's own file names would shadow the user's modules
    request = json.loads(Path(request_path).read_text(encoding="utf-8"))
    os.environ.pop("PYTHONSAFEPATH", None)
    folders = [str(Path(request[name]).absolute().parent) for name in ("answer", "target")]
    # Before torch starts threads: a process that has any cannot enter namespaces.
    confinement = importlib.import_module("leadline.graphs.torch.worker.confinement").confine(
        *folders, request["without"]
    )
    importlib.import_module("leadline.graphs.torch.worker.main").serve(request, confinement)


if __name__ == "__main__":
    main(sys.argv[1])
