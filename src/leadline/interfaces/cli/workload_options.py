"""The workload's argument and options, made from the one list of them, for every command that takes a workload."""

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
        help="config.json, model.onnx, step.mlir, file.py:function, job.toml, a model that leadline train wrote, or "
        "your own command after --.",
        show_default=False,
    ),
]
TRAINED = "A trained model"
MODEL_OPTIONS = {
    "model": Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            help="A model that leadline train wrote, in place of a workload.",
            show_default="none",
            rich_help_panel=TRAINED,
        ),
    ],
    "set": Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=VALUE",
            help="A parameter of the application, or cores, gpus, nodes, memory; repeat for more.",
            show_default="what all runs had",
            rich_help_panel=TRAINED,
        ),
    ],
    "vary": Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=VALUE,…",
            help="Values to try of a parameter or resource; repeat for more.",
            show_default="the resources, as they were run",
            rich_help_panel=TRAINED,
        ),
    ],
}
On = Annotated[
    list[str] | None,
    typer.Option(
        metavar="PLACE",
        help="Where: SYSTEM, SYSTEM:PARTITION, a DEVICE, or local; repeat for more places.",
        show_default="the whole catalog",
    ),
]

FILE_ONLY = ("name",)
"""Options that a workload file has and the command line has not."""


def takes_workload(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the workload's argument and options in place of its first parameter, which gets the workload.

    A command whose first parameter may be a ``ModelQuestion`` takes a trained model alike. The command line's values
    are read by ``read_workload``, which raises ``InvalidInput``.
    """
    first, *own = inspect.signature(command, eval_str=True).parameters.values()
    models = ModelQuestion in get_args(first.annotation)
    options = list(_options())
    asking = [_parameter(name, annotation) for name, annotation in MODEL_OPTIONS.items()] if models else []
    parameters = [_parameter("workload", SUBJECT_OR_MODEL if models else SUBJECT), *own, *asking, *options]

    @wraps(command)
    def typed(**values: Any) -> None:  # noqa: ANN401 - Typer hands over what was typed
        subject = values.pop("workload") or []
        given = {option.name: values.pop(option.name) for option in options}
        given = {name: value for name, value in given.items() if value not in (None, [])}
        asked = {option.name: values.pop(option.name) for option in asking}
        question = _question(subject, given, **asked) if models else None
        command(question or read_workload(subject, WorkloadOptions(**given)), **values)

    typed.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    typed.__annotations__ = {one.name: one.annotation for one in parameters}
    return typed


def _question(
    subject: list[str],
    given: dict[str, Any],
    model: str | None,
    set: list[str] | None,  # noqa: A002 - the option's name
    vary: list[str] | None,
) -> ModelQuestion | None:
    """Return what a trained model is asked; ``None`` where no model is named.

    Raises:
        InvalidInput: a model and a workload are both named, or an option goes with the other of them.
    """
    named = model or (subject[0] if len(subject) == 1 and is_model(subject[0]) else None)
    if named is None:
        if set or vary:
            raise InvalidInput(
                f"--{'set' if set else 'vary'} asks a trained model, and none is named: add --model FILE"
            )
        return None
    if model is not None and subject:
        raise InvalidInput(f"--model {model} and {' '.join(subject)!r} are both named: ask about one of them")
    if given:
        option = next(iter(given)).replace("_", "-")
        raise InvalidInput(f"--{option} describes a workload; what a trained model is asked is set: --set {option}=…")
    return ModelQuestion(Path(named), tuple(set or ()), tuple(vary or ()))


def _options() -> Iterator[inspect.Parameter]:
    """Yield a parameter for each workload option, in the order of the list."""
    for field in msgspec.structs.fields(WorkloadOptions):
        if field.name in FILE_ONLY:
            continue
        kinds, meta = get_args(field.type)
        told = meta.extra
        kind = _typed(kinds)
        option = typer.Option(
            f"--{field.name.replace('_', '-')}",
            metavar=None if kind is bool else told["form"],
            help=meta.description,
            show_default=told["default"],
            rich_help_panel=told["part"],
        )
        yield _parameter(field.name, Annotated[kind | None, option])


def _typed(kinds: Any) -> Any:  # noqa: ANN401 - a union of types goes in, a type comes out
    """Return the type in which an option is typed: a list where it may be repeated, text where it may be text."""
    several = [one for one in get_args(kinds) if one is not NoneType]
    return max(several, key=lambda one: (one == list[str], one is str))


def _parameter(name: str, annotation: Any) -> inspect.Parameter:  # noqa: ANN401
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)
