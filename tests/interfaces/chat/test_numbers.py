"""Numbers in a model's words."""

import pytest

from leadline.interfaces.chat.numbers import unfounded_numbers


@pytest.mark.parametrize(
    ("words", "sources", "unfounded"),
    [
        ("It takes 2.5 hours (2.1 to 3.2).", ['{"point": 9000.0, "low": 7560, "high": 11520}'], []),
        ("It needs 67.8 GiB of 80.", ['{"bytes": 72800696729, "there": 85899345920}'], []),
        ("About 12,000 steps, in 3 parts.", ["11987 steps"], []),
        ("It takes 5.5 hours.", ['{"point": 9000.0}'], ["5.5"]),
        ("It costs $40.", ['{"cost": 3.1}'], ["40"]),
        ("There are 2 options.", [], []),
        ("A share of 5 % of 100", ['{"risk": 0.05}'], ["100"]),
        ("Nothing to say", ["1"], []),
        ("It takes 1e999 s.", ["1e999"], ["1e999"]),
        ("It takes 5 hours.", ["elapsed  2h 05m"], ["5"]),
        ("It takes 2.1 hours, or 125 minutes.", ["elapsed  2h 05m"], []),
        ("The limit is 2 hours.", ["walltime 02:00:00"], []),
        ("It needs 8 GB.", ["2 GPUs, 16 GiB"], ["8"]),
        ("It costs $7.", ["7.5 GiB"], ["7"]),
        ("19.5 TFLOPS on the A100, for Mistral-7B", ["peak 19500000000000.0", "Mistral-7B"], []),
    ],
)
def test_a_number_is_founded_if_a_source_has_it_in_any_unit_and_rounding(words, sources, unfounded):
    assert unfounded_numbers(words, sources) == unfounded
