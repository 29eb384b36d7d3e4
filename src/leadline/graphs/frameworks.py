"""Find the framework that a training script uses, without running it."""

import ast
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from leadline.core.errors import InvalidInput
from leadline.files.read import is_file, read_input
from leadline.graphs.torch.command import PythonCommand

JAX = frozenset({"jax", "flax", "optax", "haiku", "equinox", "chex"})
"""Packages that mark code for JAX."""
MOST_BYTES = 2**21
"""Size of the largest Python file that is parsed: its tree takes a hundred times as much."""
MOST_FILES = 200
"""Files of a script's own that are read to find its framework."""
BACKEND = "KERAS_BACKEND"
INSTALLED = {"site-packages", "dist-packages"}


def script_framework(command: PythonCommand, cwd: Path | None = None) -> str:
    """Return the framework that a script trains with: ``torch``, ``jax`` or ``tensorflow``.

    The imports of the script decide, and of the files that it imports from its folder, the current one or
    ``PYTHONPATH``, without running them. PyTorch decides where it calls ``backward``, as JAX scripts load data with it.
    A variable such as ``DDE_BACKEND`` decides for a package that has several. Keras trains with its backend.
    """
    here = cwd or Path.cwd()
    folder = here if command.is_module else (cwd or Path()) / Path(command.target).parent
    environment = {**os.environ, **dict(command.variables)}
    places = [Path(here, place) for place in environment.get("PYTHONPATH", "").split(os.pathsep) if place]
    folders = [folder, here, *(place for place in places if INSTALLED.isdisjoint(place.parts))]
    first = _module_file(folder, command.target) if command.is_module else folder / Path(command.target).name
    trees = list(_own_trees(first, folders)) if first else []
    nodes = [node for tree in trees for node in ast.walk(tree)]
    names = {name for node in nodes for name in imported_modules(node)}
    packages = {name.partition(".")[0] for name in names}
    if "keras" in packages or (BACKEND in environment and any(name.startswith("tensorflow.keras") for name in names)):
        backend = _keras_backend(nodes, environment)
        if backend != "tensorflow" or not packages & {*JAX, "torch"}:
            return backend
    chosen = {value.lower() for name, value in environment.items() if name.endswith("_BACKEND") and name != BACKEND}
    if packages & JAX and "torch" in packages and chosen & {"jax", "torch", "pytorch"}:
        return "jax" if "jax" in chosen else "torch"
    calls_backward = any(isinstance(node, ast.Attribute) and node.attr == "backward" for node in nodes)
    if packages & JAX and not ("torch" in packages and calls_backward):
        return "jax"
    return "tensorflow" if "tensorflow" in packages and "torch" not in packages else "torch"


def imported_modules(node: ast.AST) -> list[str]:
    """Return the dotted names of the modules that a statement imports."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom):
        module = "." * node.level + (node.module or "")
        return [module, *(f"{module.rstrip('.')}.{alias.name}" for alias in node.names if not node.level)]
    return []


def _own_trees(first: Path, folders: Sequence[Path]) -> Iterator[ast.Module]:
    """Yield the syntax trees of a script and of the modules in ``folders`` that it imports, one after the other."""
    waiting, read = [first], set[Path]()
    while waiting and len(read) < MOST_FILES:
        file = waiting.pop()
        if file in read:
            continue
        read.add(file)
        try:
            tree = ast.parse(read_input(file, most=MOST_BYTES))
        except (InvalidInput, SyntaxError, ValueError, RecursionError, MemoryError):
            continue  # the run itself reports what is wrong with the file
        yield tree
        for name in (name for node in ast.walk(tree) for name in imported_modules(node)):
            bases = [file.parent] if name.startswith(".") else folders
            found = (_module_file(base, name.lstrip(".")) for base in bases)
            waiting += [path for path in found if path is not None][:1]


def _module_file(folder: Path, name: str) -> Path | None:
    path = folder.joinpath(*filter(None, name.split(".")))
    candidates = (path.with_name(f"{path.name}.py"), path / "__main__.py", path / "__init__.py")
    return next((file for file in candidates if is_file(file)), None)


def _keras_backend(nodes: list[ast.AST], environment: Mapping[str, str]) -> str:
    """Return the backend of Keras that a script sets, else of the environment or ``keras.json``, else the default."""
    for node in nodes:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Subscript):
            key, value = node.targets[0].slice, node.value
        elif isinstance(node, ast.Call) and len(node.args) == 2:  # os.environ.setdefault
            if BACKEND in environment:
                continue
            key, value = node.args[0], node.args[1]
        else:
            continue
        if isinstance(key, ast.Constant) and key.value == BACKEND and isinstance(value, ast.Constant):
            return str(value.value)
    settings = Path(environment.get("KERAS_HOME") or Path.home() / ".keras") / "keras.json"
    try:
        configured = json.loads(settings.read_text(encoding="utf-8")).get("backend")
    except (OSError, ValueError, AttributeError):
        configured = None
    return environment.get(BACKEND) or configured or "tensorflow"
