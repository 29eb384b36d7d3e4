"""Load the hook when an interpreter of the job starts; any Python version can read this file."""

import sys


def _start():
    import os

    folder = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [path for path in sys.path if path != folder]
    reports = os.environ.get("LEADLINE_HOOK")
    try:
        if sys.version_info >= (3, 9) and reports:
            package = type(sys)("_leadline_hook")
            package.__path__ = [os.path.dirname(folder)]
            sys.modules["_leadline_hook"] = package
            from _leadline_hook.start import start

            start(folder)
    except Exception as error:
        _leave_fault(os.path.join(reports, f"fault-{os.getpid()}"), error)
    _run_hidden_sitecustomize()


def _leave_fault(path, error):
    """Leave a file with an error, as ``record.leave_fault`` does once it can be imported."""
    try:
        with open(path, "w") as stream:
            stream.write(f"{type(error).__name__}: {error}")
    except OSError:
        sys.stderr.write(f"Leadline cannot watch this job: {error}\n")


def _run_hidden_sitecustomize():
    """Run the sitecustomize that this one hides, if there is one."""
    try:
        from importlib.machinery import PathFinder
    except ImportError:
        return
    spec = PathFinder.find_spec("sitecustomize")
    if spec is not None and spec.loader is not None:
        from importlib.util import module_from_spec

        sys.modules["sitecustomize"] = module = module_from_spec(spec)
        spec.loader.exec_module(module)


_start()
