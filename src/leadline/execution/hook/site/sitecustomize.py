"""Load the hook when an interpreter of the job starts; written so that any Python can read it."""

import sys


def _start():
    import os

    folder = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [path for path in sys.path if path != folder]
    try:
        if sys.version_info >= (3, 9) and os.environ.get("LEADLINE_HOOK"):
            package = type(sys)("_leadline_hook")
            package.__path__ = [os.path.dirname(folder)]
            sys.modules["_leadline_hook"] = package
            from _leadline_hook.start import start

            start(folder)
    except Exception:
        pass
    _others()


def _others():
    """Run the sitecustomize that ours stands before, if there is one."""
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
