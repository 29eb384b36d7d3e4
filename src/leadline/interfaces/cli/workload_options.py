"""The workload argument and its options, generated from ``WorkloadOptions`` for every command that takes a workload."""

import inspect
from collections.abc import Callable, Iterator
from functools import wraps
from pathlib import Path
from types import NoneType
from typing import Annotated, Any, get_args

import msgspec
import typer

from leadline.app.models.question import ModelQuestion, is_model
from leadline.app.workloads.options import WorkloadOptions
from leadline.app.workloads.read import read_workload
from leadline.core.errors import InvalidInput
from leadline.interfaces.cli.usage_errors import COMMAND_PLACEHOLDER

SUBJECT = Annotated[
    list[str] | None,
    typer.Argument(
        metavar=f"WORKLOAD | -- {COMMAND_PLACEHOLDER}…",
        help="config.json, model.onnx, step.mlir, file.py:function, job.toml, or your own command after --.",
        show_default=False,
    ),
]
SUBJECT_OR_MODEL = Annotated[
    list[str] | None,
    typer.Argument(
        metavar=f"WORKLOAD | MODEL | -- {COMMAND_PLACEHOLDER}…",
        help="config.json, model.onnx, step.mlir, file.py:function, job.toml, a model of leadline "
        "train, or your own command after --.",
        show_default=False,
    ),
]
TRAINED = "A trained model"
MODEL_OPTIONS = {
    "model": Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            help="Model of leadline train, instead of a workload.",
            show_default="none",
            rich_help_panel=TRAINED,
        ),
    ],
    "set": Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=VALUE",
            help="Parameter of the application, or cores, gpus, nodes, memory; repeatable.",
            show_default="the value of all runs",
            rich_help_panel=TRAINED,
        ),
    ],
    "vary": Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=VALUE,…",
            help="Values to try of a parameter or resource; repeatable.",
            show_default="the resources of the runs",
            rich_help_panel=TRAINED,
        ),
    ],
}
On = Annotated[
    list[str] | None,
    typer.Option(
        metavar="PLACE",
        help="Where: SYSTEM, SYSTEM:PARTITION, a DEVICE, or local; repeatable.",
        show_default="the whole catalog",
    ),
]

FILE_ONLY = ("name",)
"""Options of a workload file that the command line does not have."""


def takes_workload(command: Callable[..., None]) -> Callable[..., None]:
    """Replace a command's first parameter by the workload argument and options; the command gets the ``Workload``.

    A command whose first parameter may be a ``ModelQuestion`` also takes a trained model. ``read_workload`` raises
    ``InvalidInput`` for invalid values.
    """
    first, *command_parameters = inspect.signature(command, eval_str=True).parameters.values()
    models = ModelQuestion in get_args(first.annotation)
    options = list(_options())
    model_parameters = [_parameter(name, annotation) for name, annotation in MODEL_OPTIONS.items()] if models else []
    parameters = [
        _parameter("workload", SUBJECT_OR_MODEL if models else SUBJECT),
        *command_parameters,
        *model_parameters,
        *options,
    ]

    @wraps(command)
    def typed(**values: Any) -> None:  # noqa: ANN401 - Typer hands over what was typed
        subject = values.pop("workload") or []
        set_options = {option.name: values.pop(option.name) for option in options}
        set_options = {name: value for name, value in set_options.items() if value not in (None, [])}
        model_options = {option.name: values.pop(option.name) for option in model_parameters}
        question = _question(subject, set_options, **model_options) if models else None
        command(question or read_workload(subject, WorkloadOptions(**set_options)), **values)

    # Typer reads the options from the signature and from the annotations.
    typed.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    typed.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return typed


def _question(
    subject: list[str],
    workload_options: dict[str, Any],
    model: str | None,
    set: list[str] | None,  # noqa: A002 - the option's name
    vary: list[str] | None,
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
    return ModelQuestion(Path(named), tuple(set or ()), tuple(vary or ()))


def _options() -> Iterator[inspect.Parameter]:
    """Yield a parameter for each workload option, in their order."""
    for field in msgspec.structs.fields(WorkloadOptions):
        if field.name in FILE_ONLY:
            continue
        kinds, meta = get_args(field.type)
        metadata = meta.extra
        kind = _typed(kinds)
        option = typer.Option(
            f"--{field.name.replace('_', '-')}",
            metavar=None if kind is bool else metadata["form"],
            help=meta.description,
            show_default=metadata["default"],
            rich_help_panel=metadata["part"],
        )
        yield _parameter(field.name, Annotated[kind | None, option])


def _typed(kinds: Any) -> Any:  # noqa: ANN401 - a union of types goes in, a type comes out
    """Return the type of an option on the command line: a list if repeatable, text if text is allowed."""
    several = [arg for arg in get_args(kinds) if arg is not NoneType]
    return max(several, key=lambda kind: (kind == list[str], kind is str))


def _parameter(name: str, annotation: Any) -> inspect.Parameter:  # noqa: ANN401
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)
