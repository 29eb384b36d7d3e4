"""The workload's argument and options, made from the one list of them, for every command that takes a workload."""

import inspect
from collections.abc import Callable, Iterator
from functools import wraps
from types import NoneType
from typing import Annotated, Any, get_args

import msgspec
import typer

from leadline.app.workloads import WorkloadOptions, read_workload
from leadline.interfaces.cli.usage import OWN_COMMAND

SUBJECT = Annotated[
    list[str] | None,
    typer.Argument(
        metavar=f"WORKLOAD | -- {OWN_COMMAND}…",
        help="config.json, model.onnx, file.py:function, job.toml, or your own command after --.",
        show_default=False,
    ),
]
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

    The command line's values are read by ``read_workload``, which raises ``InvalidInput``.
    """
    own = list(inspect.signature(command, eval_str=True).parameters.values())[1:]
    options = list(_options())
    parameters = [_parameter("workload", SUBJECT), *own, *options]

    @wraps(command)
    def typed(**values: Any) -> None:  # noqa: ANN401 - Typer hands over what was typed
        subject = values.pop("workload")
        given = {option.name: values.pop(option.name) for option in options}
        command(read_workload(subject or [], WorkloadOptions(**{k: v for k, v in given.items() if v != []})), **values)

    typed.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    typed.__annotations__ = {one.name: one.annotation for one in parameters}
    return typed


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
