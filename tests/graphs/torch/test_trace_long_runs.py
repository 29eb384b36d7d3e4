"""Steps of runs that are too long to be counted: read from the source, and checked by how far the loops come."""

import pytest

from leadline.graphs.torch.worker.projection import Position, Projection, project
from leadline.graphs.torch.worker.run_progress import RunProgress
from tests.graphs.torch.test_trace_counted_runs import steps_of, trace

ACCUMULATION_THAT_WARMS_UP = """
data = DataLoader(torch.randn(52_000, 8), batch_size=4)
for epoch in range(300):
    for number, rows in enumerate(data):
        count = number + len(data) * epoch
        accumulate = min(16, 1 + count // 50)
        model(rows.to("cuda")).mean().backward()
        if count % accumulate == 0:
            optimizer.step()
            optimizer.zero_grad()
"""
WITHOUT_NUMBERS = """
data, count = DataLoader(torch.randn(52_000, 8), batch_size=4), 0
for epoch in range(300):
    for rows in data:
        model(rows.to("cuda")).mean().backward()
        count += 1
        if count % min(16, 1 + count // 50) == 0:
            optimizer.step()
            optimizer.zero_grad()
"""
ROUNDS = """
rows = torch.zeros(1024, 8)
for time in range(300_000):
    rows[time % 1024] = 1
    if (time + 1) % 1024 == 0:
        for epoch in range(10):
            for batch in rows.split(32): step(batch)
"""
MORE_AFTER_SOME = """
def fit(most):
    made = 0
    while True:
        for _ in range(1 if made < 50 else 7): step()
        made += 1
        if made == most: break
fit(1_000_000)
"""
PLAIN = "for epoch in range(1_000_000):\n    for (rows,) in loader: step(rows)\n"
COUNTED_FROM = "for number in range(1, 2_000_001):\n    if number > 300: step()\n"
LIMITED = """
made = 0
for epoch in range(1_000_000):
    for (rows,) in loader:
        step(rows)
        made += 1
        if made >= 400_003: break
    if made >= 400_003: break
"""
BY_SETTING = """
class Settings:
    def get(self, name): return {"epochs": 300_000}[name]
settings, epoch = Settings(), 0
while True:
    if epoch >= settings.get("epochs"): break
    epoch += 1
    for (rows,) in loader: step(rows)
"""


@pytest.mark.parametrize(
    ("code", "steps"),
    [(PLAIN, 5_000_000), (COUNTED_FROM, 1_999_700), (LIMITED, 400_003), (BY_SETTING, 1_500_000)],
    ids=["plain", "counted-from", "limited", "by-setting"],
)
def test_a_run_that_comes_as_far_as_the_source_says_has_its_steps(tmp_path, code, steps):
    job = trace(tmp_path, code)
    assert steps_of(job) == steps
    assert not any("about" in note for note in job.notes)


@pytest.mark.parametrize(
    ("code", "steps"),
    [(ACCUMULATION_THAT_WARMS_UP, 243_750), (WITHOUT_NUMBERS, 243_750), (MORE_AFTER_SOME, 7_000_000)],
    ids=["fewer", "without-numbers", "more"],
)
def test_a_run_that_comes_elsewhere_has_the_steps_of_its_course(tmp_path, code, steps):
    job = trace(tmp_path, code)
    assert steps_of(job) == pytest.approx(steps, rel=0.03)
    assert any(note.startswith("about ") and "assumed" in note for note in job.notes)


def test_rounds_after_many_passes_are_not_taken_for_steps_of_each_pass(tmp_path):
    steps = steps_of(trace(tmp_path, ROUNDS))
    assert steps is None or steps == pytest.approx(93_440, rel=0.1)


def test_the_course_is_that_between_two_places():
    found = project([Position(), Position(100, 0.10, 0.11), Position(300, 0.30, 0.31)])
    assert found is not None
    assert found.low == pytest.approx(300 + 199 / 0.21 * 0.69)
    assert found.high == pytest.approx(300 + 201 / 0.19 * 0.70)
    assert (found.steps, found.holds(1000), found.holds(1200), found.holds(900)) == (997, True, False, False)


@pytest.mark.parametrize("last", [Position(300, 0.10, 0.11), Position(100, 0.30, 0.31), Position()])
def test_nothing_is_told_within_the_first_pass(last):
    assert project([Position(), Position(100, 0.10, 0.11), last]) is None


def test_limits_far_from_each_other_tell_no_number():
    assert Projection(100, 110, 130).steps is None
    assert RunProgress().projection is None
