"""Install the hook if this interpreter runs the job's own code; leave no other trace."""

from __future__ import annotations

import os
import sys

from . import imports, record

TYPE_CHECKING = False  # typing itself takes a tenth of a short script's start
if TYPE_CHECKING:
    from typing import Any, List

VARIABLES = ("LEADLINE_HOOK", "LEADLINE_HOOK_UNITS", "LEADLINE_HOOK_TIME_S")
RANKS = ("RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK")
LAUNCHERS = ("torch.distributed.run", "torch.distributed.launch", "accelerate.commands.launch", "deepspeed")


def start(folder: str) -> None:
    """Install the hook in this interpreter, unless it belongs to a launcher whose children run the job."""
    if _launches():
        return
    # Read first, because ``_restore`` removes the variables.
    settings = {name: os.environ.get(name, "") for name in VARIABLES}
    _restore(folder)
    # Only rank 0 is watched: all ranks do the same work.
    if any(os.environ.get(name, "0") not in ("", "0") for name in RANKS):
        return
    if not os.path.isdir(settings["LEADLINE_HOOK"]):
        return
    record.STATE.begin(
        settings["LEADLINE_HOOK"],
        units=int(settings["LEADLINE_HOOK_UNITS"] or 0),
        time_s=float(settings["LEADLINE_HOOK_TIME_S"] or 0.0),
    )
    imports.install_import_hook(_script())
    sys.excepthook = _show_error


def _launches() -> bool:
    """True if this process only starts others: an installed command such as ``torchrun``, or its module."""
    arguments = list(getattr(sys, "orig_argv", []))
    if sys.argv and sys.argv[0] == "-m":
        module = arguments[arguments.index("-m") + 1 : arguments.index("-m") + 2] if "-m" in arguments else []
        return bool(module) and module[0].startswith(LAUNCHERS)
    script = _script()
    if not script:
        return False
    bin_folder = os.path.dirname(os.path.abspath(sys.executable))
    return os.path.dirname(script) == bin_folder or "site-packages" in script.split(os.sep)


def _script() -> str:
    """Return the absolute path of the script to run; empty for ``-m``, ``-c`` or a terminal."""
    name = sys.argv[0] if sys.argv else ""
    path = os.path.abspath(name) if name and name not in ("-", "-c", "-m") else ""
    return path if os.path.isfile(path) else ""


def _restore(folder: str) -> None:
    """Restore the job's own environment, so that its children are not watched."""
    paths: List[str] = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    if folder in paths:
        paths.remove(folder)
    if any(paths):
        os.environ["PYTHONPATH"] = os.pathsep.join(paths)
    else:
        os.environ.pop("PYTHONPATH", None)
    for name in VARIABLES:
        os.environ.pop(name, None)


def _show_error(kind: Any, error: Any, trace: Any) -> None:
    """Show an uncaught error as Python does, without the hook's own frames."""
    runpy_files = ("<frozen runpy>", os.path.join(os.path.dirname(os.__file__), "runpy.py"))
    while trace is not None:
        file = trace.tb_frame.f_code.co_filename
        if file not in runpy_files and os.path.dirname(file) != os.path.dirname(os.path.abspath(__file__)):
            break
        trace = trace.tb_next
    sys.__excepthook__(kind, error.with_traceback(trace), trace)
