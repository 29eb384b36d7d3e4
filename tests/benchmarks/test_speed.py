"""``bench speed`` times whole processes, and refuses to time one that fails."""

import sys

import pytest

from benchmarks.speed import _interleaved, _startup_rows
from leadline.core.errors import LeadlineError


def test_start_up_is_a_small_multiple_of_bare_python():
    rows = _startup_rows(1)
    assert [row.target for row in rows] == [8, 12, 20, 20]
    assert "leadline jobs ÷ bare Python" in [row.name for row in rows]
    for row in rows:
        assert row.unit == "×"
        assert 0 < row.baseline < 5
        assert row.value >= 0.5


def test_commands_are_timed_apart_from_each_other():
    nothing, sleeping = _interleaved(
        [[sys.executable, "-c", "pass"], [sys.executable, "-c", "import time; time.sleep(0.3)"]], 1
    )
    assert 0 < nothing < sleeping
    assert sleeping > 0.3


def test_a_command_that_fails_has_no_time():
    with pytest.raises(LeadlineError, match=r"a measured command failed: .*no reason"):
        _interleaved([[sys.executable, "-c", "raise SystemExit('no reason')"]], 1)
