"""Find the workload that a person names: a file, a script, a model in the Hugging Face cache, or a trained one."""

from pathlib import Path

from leadline.app import settings
from leadline.app.workloads.names import HUB, cached_config, hub_config, is_library_model
from leadline.app.workloads.read import MODEL_SUFFIXES, read_references
from leadline.core.documents import split_command
from leadline.core.errors import InvalidInput, excerpt
from leadline.files.read import exists, is_file


def find_subject(name: str, folder: Path, *, scripts: bool = False) -> tuple[str, ...]:
    """Return the words that ``read_workload`` takes for a name.

    The name is a file in ``folder`` or an uploaded one, a model that transformers or huggingface_hub has put into its
    cache (``mistralai/Mistral-7B-v0.1``), a model of a library (``timm:resnet50``), or a model in the user's data
    folder. With ``scripts`` it may also be a
    Python script of that folder or a command with one, which is traced in the sandbox.

    Raises:
        InvalidInput: there is no such thing, it lies outside the folder, or scripts are not allowed.
    """
    words = split_command(name.strip() or "''", label="workload")
    script = next((word for word in words if word.endswith(".py")), None)
    if script is not None:
        if not scripts:
            raise _script_refused(name, f"-- python {excerpt(script)}")
        _inside(script, folder)
        return ("python", script) if len(words) == 1 else tuple(words)
    if len(words) == 1 and exists(trained := settings.data_dir() / "models" / f"{Path(words[0]).name}.npz"):
        return (str(trained),)
    if is_library_model(words[0]) and len(words) == 1:
        return (words[0],)
    model = name.strip().removeprefix(HUB)
    if cached := cached_config(model):
        return (str(cached),)
    if model != name.strip():
        return (str(_inside(str(hub_config(model, folder)), folder)),)
    file = _model_file(name.strip(), folder)
    if not is_file(file):
        raise InvalidInput(
            f"workload is {excerpt(name)!r}, which is no file in {folder}, no model in the Hugging Face cache of this "
            "machine, no model of a library (timm:NAME, torchvision:NAME) and no trained model: name a file "
            f"({', '.join(f'*{suffix}' for suffix in MODEL_SUFFIXES)}), or download the model's config.json first"
        )
    if file.suffix == ".toml":
        _check_references(file, folder, scripts=scripts)
    return (str(file),)


def _check_references(file: Path, folder: Path, *, scripts: bool) -> None:
    """Hold what a workload file names to the same rules as a workload that is named directly.

    Raises:
        InvalidInput: it is broken, it names a file outside the folder, or a script although scripts are not allowed.
    """
    references, lengths = read_references(file)
    words = [word.removeprefix(HUB) for word in references]
    is_command = len(words) > 1
    code = [word.rpartition(":")[0] or word for word in words if word.endswith(".py") or ".py:" in word]
    if (is_command or code) and not scripts:
        raise _script_refused(file.name, excerpt(file.name))
    # The scripts of a command count from the working directory, all else from the workload file.
    base = folder if is_command else file.parent
    paths = [base / word for word in (code if is_command else code or words)]
    for path in [*paths, *([] if lengths is None else [file.parent / lengths])]:
        _model_file(str(path), folder)


def _script_refused(name: str, command: str) -> InvalidInput:
    return InvalidInput(
        f"workload is {excerpt(name)!r}, but estimating a script runs it in a sandbox, which is not allowed "
        f"here: type leadline estimate {command}"
    )


def _model_file(name: str, folder: Path) -> Path:
    """Return the file that a path in ``folder`` or among the uploads names; that of a folder is its ``config.json``."""
    file = _inside(name, folder)
    if not is_file(file) and is_file(file / "config.json"):
        return _inside(str(file / "config.json"), folder)
    return file


def _inside(name: str, folder: Path) -> Path:
    """Return a path in ``folder`` or among the uploads; ``InvalidInput`` if it leads out of them, also by a link."""
    try:
        path = (folder / name).resolve()
    except (OSError, ValueError, RuntimeError) as error:  # too long, a NUL, or links in a circle
        raise InvalidInput(f"workload is {excerpt(name)!r}, which is no path: {error}") from error
    if not any(path.is_relative_to(allowed.resolve()) for allowed in (folder, settings.uploads_dir())):
        raise InvalidInput(f"workload is {excerpt(name)!r}, which lies outside {folder}: copy it into that folder")
    return path
