"""``leadline bench``: run a benchmark of a clone, or tell where the benchmarks are."""

from importlib import import_module
from importlib.util import find_spec
from typing import Annotated

import typer

from leadline.core.errors import InvalidInput
from leadline.interfaces.cli.command import CommandApp

app = CommandApp()

if find_spec("benchmarks") is not None:
    app = import_module("benchmarks.command").app
else:

    @app.command()
    def bench(name: Annotated[str, typer.Argument(metavar="NAME", help="The benchmark to run.")]) -> None:
        """Measure the promised metrics again; needs a clone of Leadline."""
        raise InvalidInput(
            f"the benchmark {name} is not part of an installed Leadline: clone the repository and run "
            f"python3 dev bench {name} there"
        )
