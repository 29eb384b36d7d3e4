"""Frozen values: what the functions of ``dataclasses`` and pickling do with them."""

import pickle
from dataclasses import asdict, fields, is_dataclass, replace

import pytest
from msgspec import field

from leadline.core.frozen import Frozen


class Point(Frozen):
    x: float
    labels: dict[str, str] = field(default_factory=dict)


def test_the_functions_of_dataclasses_work_on_a_frozen_value():
    point = Point(1.0, {"a": "b"})
    assert replace(point, x=2.0) == Point(2.0, {"a": "b"})
    assert [entry.name for entry in fields(Point)] == ["x", "labels"]
    assert asdict(point) == {"x": 1.0, "labels": {"a": "b"}}
    assert is_dataclass(point)
    with pytest.raises(TypeError):
        replace(point, y=2.0)


def test_a_frozen_value_is_unchangeable_and_survives_a_pickle():
    point = Point(1.0)
    with pytest.raises(AttributeError):
        point.x = 2.0
    assert pickle.loads(pickle.dumps(point)) == point  # noqa: S301 - made here
    assert point.labels is not Point(1.0).labels
