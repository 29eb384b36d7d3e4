"""The committed list of public scripts and the facts that are expected of each."""

import json
import os
import shlex
import shutil
import tempfile
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import msgspec

from leadline.core.errors import InvalidInput

FOLDER = Path(__file__).parent
LIST, COUNTS = FOLDER / "scripts.toml", FOLDER / "counts.json"


@dataclass(frozen=True, slots=True)
class Repository:
    """A public repository at a fixed commit.

    Attributes:
        name: ``owner/name`` on GitHub.
        folders: The folders to check out; all of them without any.
    """

    name: str
    commit: str
    license: str
    folders: tuple[str, ...] = ()

    @property
    def url(self) -> str:
        """Return the address to clone from."""
        return f"https://github.com/{self.name}"

    def folder(self, data: Path) -> Path:
        """Return its checkout."""
        return data / "repositories" / self.name.replace("/", "+")


@dataclass(frozen=True)
class PublicScript:
    """A script, its command, and the facts of its loop under that command.

    Attributes:
        run: The command in ``folder``; ``{data}`` stands for the folder of the recipes.
        steps: Optimizer steps of the whole run, of the optimizer that steps most rarely; None if it depends on results.
        epochs: Passes over the data set.
        batch: Samples of a forward pass on one device; None without a loader or a module.
        varies: The operations of a step depend on random lengths, and are not compared.
        refused: A word of the true reason why it cannot be traced; empty for scripts that must be answered.
        recipes: The data sets that it reads.
        links: Paths from ``folder`` that lead to a folder of the recipes, as ``PATH`` or ``PATH=FOLDER``.
        packages: Packages beside torch and torchvision, or all of them in another environment.
        venv: The folder of the environment that it runs in.
        variables: Environment variables; ``{data}`` stands as in ``run``.
        python_path: A folder, from ``folder``, whose packages the script imports without their being installed.
        home: A folder, from ``folder``, that is the user's home folder to the script.
        why: How the steps follow from the script, where its loader does not tell.
    """

    name: str
    repository: Repository
    category: str
    run: str
    folder: str = "."
    steps: int | None = None
    epochs: float | None = None
    batch: int | None = None
    varies: bool = False
    refused: str = ""
    recipes: tuple[str, ...] = ()
    links: tuple[str, ...] = ()
    packages: tuple[str, ...] = ()
    venv: str = "venv"
    variables: dict[str, str] = field(default_factory=dict)
    python_path: str = ""
    home: str = ""
    why: str = ""

    @cached_property
    def counted(self) -> dict[str, object]:
        """Return what a real run counted: parameters, frozen ones, and operations of a step."""
        counts: dict[str, dict[str, object]] = json.loads(COUNTS.read_text(encoding="utf-8"))
        return counts.get(self.name, {})

    def cwd(self, data: Path) -> Path:
        """Return the folder in which the command runs."""
        return self.repository.folder(data) / self.folder

    @contextmanager
    def copied(self, data: Path) -> Iterator[Path]:
        """Yield the folder in which the command runs in a copy of the repository, which a real run may write to."""
        with tempfile.TemporaryDirectory(prefix="leadline-run-") as folder:
            copy = Path(folder, "repository")
            ignored = shutil.ignore_patterns(".git")
            shutil.copytree(self.repository.folder(data), copy, symlinks=True, ignore=ignored)
            yield copy / self.folder

    def environment(self, folder: Path, data: Path) -> dict[str, str]:
        """Return the variables that a run in ``folder`` needs beside the present ones."""
        folders = {"PYTHONPATH": self.python_path, "HOME": self.home}
        paths = {name: str((folder / path).resolve()) for name, path in folders.items() if path}
        return paths | {name: _with_data(value, data) for name, value in self.variables.items()}

    def command(self, data: Path) -> tuple[str, ...]:
        """Return the command as typed in the environment of the scripts."""
        words = shlex.split(_with_data(self.run, data))
        program = data.absolute() / self.venv / "bin" / words[0]
        return (str(program), *words[1:])


def _with_data(text: str, data: Path) -> str:
    return text.replace("{data}", str((data / "data").absolute()))


def public_scripts(names: tuple[str, ...] = ()) -> list[PublicScript]:
    """Return the scripts of the list, or those whose names begin with one of ``names``."""
    entries = [
        {**script, "repository": repository}
        for repository in tomllib.loads(LIST.read_text(encoding="utf-8"))["repository"]
        for script in repository["scripts"]
    ]
    scripts = msgspec.convert(entries, list[PublicScript])
    return [script for script in scripts if not names or script.name.startswith(names)]


def require_scripts(data: Path | None) -> Path:
    """Return the folder of the scripts.

    Raises:
        InvalidInput: It is not there, or has no environment.
    """
    if data is None or not (data / "venv").exists():
        raise InvalidInput(
            f"this bench needs --data DIR with the public scripts, not {data}: "
            "run python -m benchmarks.public_scripts fetch DIR"
        )
    return data


@contextmanager
def variables_set(variables: Mapping[str, str]) -> Iterator[None]:
    """Set environment variables for the processes that are started inside."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name) if value is None else os.environ.update({name: value})
