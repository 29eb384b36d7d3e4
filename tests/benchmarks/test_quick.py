"""Ratios that exceed the committed ones by more than the slack fail."""

import json

import msgspec
import pytest

from benchmarks import quick
from benchmarks.quick import BASELINE, SLACK, RatioCase, cases


def work(count):
    return lambda: sum(range(count))


@pytest.fixture
def one_case(monkeypatch, tmp_path):
    """Measure one ratio, against a baseline that the test chooses."""

    def prepare(ratio):
        baseline = tmp_path / "quick.json"
        baseline.write_text(json.dumps({"sums": ratio}))
        monkeypatch.setattr(quick, "BASELINE", baseline)
        monkeypatch.setattr(quick, "cases", lambda *_, **__: [RatioCase("sums", work(200_000), work(100_000), 5)])

    return prepare


@pytest.mark.parametrize(("ratio", "met"), [(10.0, True), (0.01, False)])
def test_a_ratio_is_compared_with_the_committed_one(one_case, ratio, met):
    one_case(ratio)
    (row,) = quick.run().rows
    assert row.met is met
    assert row.target == SLACK * ratio


def test_every_committed_ratio_has_a_case(tmp_path):
    names = {case.name for case in cases(tmp_path)}
    committed = msgspec.json.decode(BASELINE.read_bytes(), type=dict[str, float])
    assert names <= set(committed)


def test_a_ratio_above_its_limit_is_measured_again_before_it_fails():
    # the first two measurements meet a busy moment
    sizes = iter([4_000_000, 4_000_000])
    case = RatioCase("sums", lambda: sum(range(next(sizes, 200_000))), work(200_000), 2)
    measured_s, reference_s, timed = case.seconds(limit=3.0)
    assert timed > 2
    assert measured_s <= 3.0 * reference_s
