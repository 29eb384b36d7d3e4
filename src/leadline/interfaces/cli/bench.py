"""``leadline bench``: run a benchmark where the package ``benchmarks`` is importable, as in a clone."""

from importlib import import_module
from importlib.util import find_spec

from leadline.core.errors import InvalidInput
from leadline.interfaces.cli.command import argument, command


def benchmarks_installed() -> bool:
    """Return whether Leadline's benchmarks are importable, not another project's package of that name."""
    try:
        return find_spec("benchmarks.command") is not None and find_spec("benchmarks.provenance") is not None
    except ImportError:
        return False


@command("bench", context_settings={"ignore_unknown_options": True, "allow_extra_args": True})
@argument("name", "NAME", "The benchmark to run.")
def bench(name: str) -> None:
    """Measure the promised metrics again; needs a clone of the repository."""
    raise InvalidInput(
        f"benchmark {name} is not installed: benchmarks come with the repository, not with the package "
        f"(clone it and run python3 dev bench {name} there)"
    )


if benchmarks_installed():
    bench = import_module("benchmarks.command").bench
