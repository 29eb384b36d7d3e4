"""The tables of the plane's page."""

from benchmarks.plane.page import tables


def row(name, value, *, unit="", target=None, met=None, high=None, baseline=None, how="so"):
    return {"name": name, "value": value, "unit": unit, "target": target, "target_high": high, "met": met,
            "baseline": baseline, "n": 3, "how": how}  # fmt: skip


def test_each_part_has_its_heading_and_what_is_missed_is_bold():
    said = tables([[
        row("jobs handed over, ÷ bare", 0.4, unit="times", target=0.5, met=False, baseline=1.0, how="a|b"),
        row("faults injected", 112, unit="faults", target=100, met=True),
        row("loop: completed", 95, unit="%", target=95, met=True),
    ]])  # fmt: skip
    assert [line for line in said.splitlines() if line.startswith("## ")] == [
        "## Rates and the plane's own cost", "## Faults", "## The closed loop"]  # fmt: skip
    assert "| jobs handed over, ÷ bare | **0.4 times** | ≥ 0.5 | 1 times | 3 | a\\|b |" in said
    assert "| loop: completed | 95 % | 95 |  | 3 | so |" in said


def test_ways_of_asking_and_answering_are_lines_with_their_figures_as_columns():
    said = tables([[
        row("replay of 10,000 jobs", 1.4, unit="s", target=20, met=True),
        row("mean wait: users", 4512.4, unit="s"), row("mean wait: oracle", 5.0, unit="h"),
        row("jobs killed: users", 1.0, unit="%"),
        row("real waits: learned once: held", 98.0, unit="%", target=85, high=95, met=False),
    ]]).splitlines()  # fmt: skip
    assert "| replay of 10,000 jobs | 1.4 s | ≤ 20 |  | 3 | so |" in said
    assert {"|  | mean wait | jobs killed |", "| users | 4,512 s | 1 % |", "| oracle | 5 h |  |"} <= set(said)
    assert {"|  | held |", "| real waits: learned once | **98 %** |"} <= set(said)


def test_a_part_that_was_measured_again_stands_in_its_old_place():
    first = [row("faults injected", 100), row("faults of old", 3), row("loop: completed", 90)]
    again = [row("faults injected", 112), row("faults on 24.11", 7)]
    assert tables([first, again]) == tables([[*again, first[-1]]])
