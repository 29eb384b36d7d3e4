"""The posters' settings hold out models and families, never rows that have a twin."""

from types import SimpleNamespace

import numpy as np
import pytest

from benchmarks.dnn import posters
from benchmarks.dnn.vision_lab import rows_without_twins

MODELS = 40
NAMES = np.array([f"model{number:02d}" for number in range(MODELS) for _ in range(2)])
"""Each model was measured in two settings."""
TWIN_OF_FIRST = 2
"""The second model has the shape of the first."""


@pytest.fixture
def lab():
    n = len(NAMES)
    shape = np.repeat(np.arange(MODELS), 2)
    shape[TWIN_OF_FIRST : TWIN_OF_FIRST + 2] = 0
    steps = SimpleNamespace(model=NAMES, family=NAMES, step_s=np.linspace(1.0, 2.0, n))
    return SimpleNamespace(
        steps=steps,
        setting=np.array(["gpu infer", "gpu train"] * MODELS),
        shape=shape,
        baselines=SimpleNamespace(answers=lambda _, ask: {"mean": np.full(len(ask), 1.5)}),
        without_twins=lambda learn, ask: rows_without_twins(learn, ask, NAMES, shape),
    )


class RecordingTable:
    """A table whose fits remember their rows."""

    def __init__(self, step_s):
        self.step_s = step_s
        self.splits = []

    def fitted(self, rows, *_):
        return rows

    def predict(self, fitted, rows):
        self.splits.append((fitted, rows))
        return self.step_s[rows] * 1.1


def test_the_black_box_never_learns_from_a_model_that_it_is_asked_for_or_from_its_twin(lab):
    table = RecordingTable(lab.steps.step_s)
    split, _ = posters._black_box(lab, table, posters.FIFTHS)
    assert len(split.measured) == len(NAMES)
    for learn, ask in table.splits:
        assert set(NAMES[learn]).isdisjoint(NAMES[ask])
        assert set(lab.shape[learn]).isdisjoint(lab.shape[ask])


class FakeMethods(posters.FewTrainingSteps):
    """A white box that returns the number of its training rows."""

    def white_box(self, few, ask):
        return np.full(len(ask), float(len(few)))


class ColumnTable(RecordingTable):
    """A table that keeps the columns added to it."""

    columns = ()

    def with_column(self, _, rows, seconds):
        table = ColumnTable(self.step_s)
        table.columns = (*self.columns, (rows, seconds))
        ColumnTable.last = table
        return table


def test_boosting_sees_the_white_box_out_of_fold_for_the_rows_that_it_learns_from(lab):
    few, ask = np.arange(0, 50), np.arange(60, 70)
    predicted, low, high, *_ = FakeMethods(lab, ColumnTable(lab.steps.step_s), "gpu train").predict(few, ask)
    (rows, inner), (asked, outer) = ColumnTable.last.columns
    assert (rows.tolist(), asked.tolist()) == (few.tolist(), ask.tolist())
    assert max(inner) < len(few)  # no row's own step is in the white box that it is given
    assert set(outer) == {float(len(few))}
    assert (low <= predicted).all()
    assert (predicted <= high).all()
