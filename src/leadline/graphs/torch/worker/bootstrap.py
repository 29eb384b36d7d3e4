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
from typing import Any, Dict

SHELLS = ("leadline", "leadline.graphs", "leadline.graphs.torch", "leadline.graphs.hlo")


def confine(request: Dict[str, Any], code: str) -> Any:
    """Create the package shells, continue in a process that is confined, and return how it is, which a file also says.

    ``code`` is the file of the user. To be called before any thread starts: none may run when namespaces are entered.
    """
    root = Path(__file__).resolve().parents[3]
    for name in SHELLS:
        shell = types.ModuleType(name)
        shell.__path__ = [str(root.joinpath(*name.split(".")[1:]))]
        sys.modules[name] = shell
    confinement = importlib.import_module("leadline.graphs.torch.worker.confinement")
    # An argument may name a folder of data or results, also as --output=FOLDER.
    paths = [code, *(word.rpartition("=")[2] for word in request.get("argv", ()))]
    confined = confinement.confine(str(Path(request["answer"]).parent), paths, request["without"])
    # Code that executes another program or is killed gives no answer, so this is written before any of it runs.
    note = {"confinement": confined.sentence(), "harm": confined.sentence() if confined.possible else ""}
    Path(request["answer"]).with_name("confinement.json").write_text(json.dumps(note), encoding="utf-8")
    return confined


def main(request_path: str) -> None:
    """Read the request, and start the worker in a confined process."""
    if sys.path and sys.path[0] == str(Path(__file__).resolve().parent):
        del sys.path[0]  # else the worker's own file names would shadow the user's modules
    request = json.loads(Path(request_path).read_text(encoding="utf-8"))
    os.environ.pop("PYTHONSAFEPATH", None)
    confinement = confine(request, request["target"])
    importlib.import_module(request["worker"]).serve(request, confinement)


if __name__ == "__main__":
    main(sys.argv[1])
