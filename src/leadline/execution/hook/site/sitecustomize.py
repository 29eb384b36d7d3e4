"""Load the hook when an interpreter of the job starts; written so that any Python can read it."""

import sys


def _start():
    import os

    folder = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [path for path in sys.path if path != folder]
    try:
        if sys.version_info >= (3, 9) and os.environ.get("LEADLINE_HOOK"):
            import importlib.util

            above = os.path.dirname(folder)
            spec = importlib.util.spec_from_file_location(
                "_leadline_hook", os.path.join(above, "__init__.py"), submodule_search_locations=[above]
            )
            package = importlib.util.module_from_spec(spec)
            sys.modules["_leadline_hook"] = package
            spec.loader.exec_module(package)
            importlib.import_module("_leadline_hook.start").start(folder)
    except Exception:
        pass
    _others()


def _others():
    """Run the sitecustomize that ours stands before, if there is one."""
    try:
        from importlib.machinery import PathFinder
        from importlib.util import module_from_spec
    except ImportError:
        return
    spec = PathFinder.find_spec("sitecustomize")
    if spec is not None and spec.loader is not None:
        sys.modules["sitecustomize"] = module = module_from_spec(spec)
        spec.loader.exec_module(module)


_start()
