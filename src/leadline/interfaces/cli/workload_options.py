"""The workload argument and its options, generated from ``WorkloadOptions`` for every command that takes a workload."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial, wraps
from pathlib import Path
from types import NoneType
from typing import Any, get_args, get_type_hints

import msgspec

from leadline.app.models.question import ModelQuestion, is_model
from leadline.app.workloads.options import OPTION_TABLES, WorkloadOptions
from leadline.app.workloads.read import read_workload
from leadline.core.errors import InvalidInput
from leadline.interfaces.cli.command import COMMAND_PLACEHOLDER, FILE, Decorator, argument, complete_files, option

FORMS = "config.json, model.onnx, step.mlir, file.py:function, timm:NAME, torchvision:NAME, hf:OWNER/MODEL, job.toml, "
WORKLOAD = argument(
    "workload", f"WORKLOAD | -- {COMMAND_PLACEHOLDER}…", f"{FORMS}or your own command after --.",
    nargs=-1, shell_complete=complete_files,
)  # fmt: skip
WORKLOAD_OR_MODEL = argument(
    "workload", f"WORKLOAD | MODEL | -- {COMMAND_PLACEHOLDER}…",
    f"{FORMS}a model of leadline train, or your own command after --.", nargs=-1, shell_complete=complete_files,
)  # fmt: skip
_of_model = partial(option, section="A trained model")
MODEL_OPTIONS = (
    _of_model("--model", "FILE", "Model of leadline train, instead of a workload.", "none", type=FILE),
    _of_model("--set", "NAME=VALUE", "Parameter of the application, or cores, gpus, nodes, memory; repeatable.",
              "the value of all runs", multiple=True),
    _of_model("--vary", "NAME=VALUE,…", "Values to try of a parameter or resource; repeatable.",
              "the resources of the runs", multiple=True),
)  # fmt: skip
on_option = option(
    "--on", "PLACE", "Where: SYSTEM, SYSTEM:PARTITION, a DEVICE, or local; repeatable.", "the whole catalog",
    multiple=True,
)  # fmt: skip

FILE_ONLY = ("name",)
"""Options of a workload file that the command line does not have."""


def takes_workload(command: Callable[..., None]) -> Callable[..., None]:
    """Add the workload argument and options to a command, which gets the ``Workload`` as its first argument.

    A command whose first parameter may be a ``ModelQuestion`` also takes a trained model. ``read_workload`` raises
    ``InvalidInput`` for invalid values.
    """
    names = [field.name for field in msgspec.structs.fields(WorkloadOptions) if field.name not in FILE_ONLY]
    models = ModelQuestion in get_args(next(iter(get_type_hints(command).values())))

    @wraps(command)
    def typed(workload: tuple[str, ...], **values: Any) -> None:  # noqa: ANN401 - what was typed
        typed_options = {name: values.pop(name) for name in names}
        # A flag that was not given is None, so that a script's own value holds.
        options = {name: value for name, value in typed_options.items() if value is not None and value != ()}
        question = None
        if models:
            question = _question(workload, options, values.pop("model"), values.pop("set"), values.pop("vary"))
        command(question or read_workload(workload, WorkloadOptions(**options)), **values)

    decorated: Callable[..., None] = typed
    # Decorators are applied from the last option to the first.
    for decorate in reversed(
        [WORKLOAD_OR_MODEL if models else WORKLOAD, *(MODEL_OPTIONS if models else ()), *_options()]
    ):
        decorated = decorate(decorated)
    return decorated


def _question(
    subject: Sequence[str],
    workload_options: dict[str, Any],
    model: Path | None,
    set: tuple[str, ...],  # noqa: A002 - the option's name
    vary: tuple[str, ...],
) -> ModelQuestion | None:
    """Return the question to a trained model; ``None`` if no model is named.

    Raises:
        InvalidInput: a model and a workload are both named, or an option belongs to the other one.
    """
    named = model or (subject[0] if len(subject) == 1 and is_model(subject[0]) else None)
    if named is None:
        if set or vary:
            raise InvalidInput(f"--{'set' if set else 'vary'} needs a trained model: add --model FILE")
        return None
    if model is not None and subject:
        raise InvalidInput(f"--model and the workload {' '.join(subject)!r} exclude each other")
    if workload_options:
        option = next(iter(workload_options)).replace("_", "-")
        raise InvalidInput(f"--{option} is for workloads; for a trained model use --set {option}=…")
    return ModelQuestion(Path(named), set, vary)


def _options() -> Iterator[Decorator]:
    """Yield the declaration of each workload option, in their order."""
    for field in msgspec.structs.fields(WorkloadOptions):
        if field.name in FILE_ONLY:
            continue
        described = OPTION_TABLES.options[field.name]
        several = [kind for kind in get_args(field.type) if kind is not NoneType]
        # A list if the option is repeatable, text if text is allowed.
        kind = max(several, key=lambda kind: (kind == list[str], kind is str))
        kinds: dict[Any, dict[str, Any]] = {list[str]: {"multiple": True}, bool: {"is_flag": True, "default": None}}
        yield option(
            f"--{field.name.replace('_', '-')}", None if kind is bool else described.form, described.help,
            described.default, section=described.part, **kinds.get(kind, {"type": kind}),
        )  # fmt: skip
