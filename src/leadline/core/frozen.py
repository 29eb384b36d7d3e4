"""The base class of frozen values."""

from dataclasses import Field, fields, make_dataclass
from functools import cache
from typing import Any, dataclass_transform

from msgspec import Struct, field


@cache
def _dataclass_fields(kind: type[Struct]) -> dict[str, Field[Any]]:
    twin: Any = make_dataclass(kind.__name__, kind.__struct_fields__)
    return {entry.name: entry for entry in fields(twin)}


class _DataclassFields:
    """The fields of a class for the functions of ``dataclasses``, made on first use."""

    def __get__(self, value: object, kind: type[Struct]) -> dict[str, Field[Any]]:
        return _dataclass_fields(kind)


# Making a dataclass takes Python a millisecond, making a struct 15 µs, and every command makes a hundred of them.
@dataclass_transform(frozen_default=True, field_specifiers=(field,))
class Frozen(Struct, frozen=True):
    """A frozen value with typed fields; ``dataclasses.replace``, ``fields`` and ``asdict`` work on it."""

    __dataclass_fields__ = _DataclassFields()
