"""``leadline bench``: run a benchmark where the package ``benchmarks`` is importable, as in a clone."""

from importlib import import_module
from importlib.util import find_spec
from typing import Annotated

import typer

from leadline.core.errors import InvalidInput
from leadline.interfaces.cli.command import CommandApp


def benchmarks_installed() -> bool:
    """Return whether Leadline's benchmarks are importable, not another project's package of that name."""
    try:
        return find_spec("benchmarks.command") is not None and find_spec("benchmarks.provenance") is not None
    except ImportError:
        return False


app = CommandApp()

if benchmarks_installed():
    app = import_module("benchmarks.command").app
else:

    @app.command(context_settings={"ignore_unknown_options": True, "allow_extra_args": True})
    def bench(
        name: Annotated[str, typer.Argument(metavar="NAME", help="The benchmark to run.")],
    ) -> None:
        """Measure the promised metrics again; needs a clone of the repository."""
        raise InvalidInput(
            f"benchmark {name} is not installed: benchmarks come with the repository, not with the package "
            f"(clone it and run python3 dev bench {name} there)"
        )
