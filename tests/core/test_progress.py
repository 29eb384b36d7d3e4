"""Lines of the progress file."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leadline.core.progress import LoopProgress, Progress, ProgressLine, parse_progress_line


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("epoch=3 step=120 loss=0.41", ProgressLine(step=120, epoch=3, more={"loss": "0.41"})),
        ("step=1,total_steps=500", ProgressLine(step=1, total_steps=500)),
        ("step=1e3 t=1700000000.25", ProgressLine(step=1000, t=1700000000.25)),
        ("phase=evaluate", ProgressLine(phase="evaluate")),
    ],
)
def test_a_line_of_names_and_values_is_parsed(text, line):
    assert parse_progress_line(text) == line


@pytest.mark.parametrize("text", ["", "step", "step=", "step=-1", "step=two", "step=1.5", "step=nan", "t=inf", "=3",
                                  "step 3", "done: step=3"])  # fmt: skip
def test_a_line_of_another_form_is_none(text):
    assert parse_progress_line(text) is None


@given(st.text(max_size=200))
def test_no_text_is_an_error(text):
    assert isinstance(parse_progress_line(text), ProgressLine | None)


def test_the_innermost_level_is_the_unit():
    epoch, step = LoopProgress("epoch", 2, 20.0), LoopProgress("step", 10, 20.0, sampled_s=(1.0, 2.0, 9.0))
    assert Progress("test", (epoch, step)).unit is step
    assert step.median_s == 2.0
    assert Progress("test").unit is None
