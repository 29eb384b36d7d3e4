import pytest

from benchmarks.field.seasons import POLICIES, REVIEWED, draw_seasons, rows_of


def _courses(never, scheduled, triggered):
    accuracy = dict(zip(POLICIES, (never, scheduled, scheduled - 0.02, triggered), strict=True))
    return [
        {"seed": seed, "strength": strength, "policy": policy, "accuracy": accuracy[policy] + seed / 100,
         "retrained": [100] * 4, "curve": [0.9, accuracy[policy]]}
        for seed in (1, 2) for strength in (0.3, 1.0) for policy in POLICIES
    ]  # fmt: skip


def test_the_mildest_drift_has_no_target_and_the_strong_must_beat_the_better_of_two():
    mild, strong = rows_of(_courses(never=0.6, scheduled=0.7, triggered=0.75))
    assert mild.target is None
    assert mild.met is None
    assert strong.met
    assert strong.value == pytest.approx(76.5)
    assert strong.target == strong.baseline == pytest.approx(71.5)
    assert strong.n == 2


def test_the_better_of_the_two_calendars_is_the_baseline():
    courses = _courses(never=0.6, scheduled=0.7, triggered=0.75)
    for course in courses:
        course["accuracy"] += 0.1 * (course["policy"] == REVIEWED)
    assert rows_of(courses)[1].baseline == pytest.approx(79.5)
    assert rows_of(courses)[1].met is False


def test_a_policy_that_beats_only_the_schedule_misses_the_target():
    assert rows_of(_courses(never=0.8, scheduled=0.7, triggered=0.75))[1].met is False


def test_the_curves_are_drawn_the_same_each_time(tmp_path):
    courses = _courses(never=0.6, scheduled=0.7, triggered=0.75)
    for name in ("first.svg", "again.svg"):
        draw_seasons(courses, tmp_path / name)
    assert (tmp_path / "first.svg").read_bytes() == (tmp_path / "again.svg").read_bytes()
    assert "scheduled, at equal compute" in (tmp_path / "first.svg").read_text()
