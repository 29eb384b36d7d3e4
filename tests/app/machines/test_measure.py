"""The verb ``measure`` as an application: what it refuses, and what it tells."""

import pytest

from leadline.app.machines.measure import MeasureOptions, measure, summary_sentence, write_kit
from leadline.core.errors import InvalidInput
from leadline.kit import run
from leadline.kit.design import design_points


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_short_run_is_summarized_in_a_sentence_and_in_numbers(tmp_path, monkeypatch):
    pytest.importorskip("torch")
    # A short design ends the run: how many points fit in a time depends on the machine's load.
    monkeypatch.setattr(run, "design_points", lambda settings: design_points(settings)[:3])
    path = tmp_path / "rows.jsonl"
    announced = []
    summary = measure(
        MeasureOptions(path, minutes=60, device="cpu", quick=True, ops=False),
        lambda _, in_file, __: announced.append(in_file),
    )
    assert summary.in_file == sum(summary.outcomes.values()) == path.read_text().count("\n") - 1 == 3
    assert announced == [1, 2, 3]
    assert f"{path} holds 3; the design is done" in summary_sentence(summary)
    assert summary.notes == ["energy is not measured: there is no meter for a CPU"]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"minutes": -1}, "--minutes -1 is no time to measure in: give for example 20"),
        ({"point_s": 0}, "--point-limit is 0, but it must be above 0"),
        ({"python": "/nowhere/python"}, "/nowhere/python cannot be started"),
    ],
)
def test_an_impossible_request_is_refused_and_writes_no_file(change, says, tmp_path):
    if "python" not in change:
        pytest.importorskip("torch")
    with pytest.raises(InvalidInput, match=says):
        measure(MeasureOptions(**{"out": str(tmp_path / "rows.jsonl"), "device": "cpu", **change}))
    assert list(tmp_path.iterdir()) == []


def test_the_kit_is_written_whole_or_not_at_all(tmp_path):
    kit = tmp_path / "kit.pyz"
    assert write_kit(kit) == kit.stat().st_size
    with pytest.raises(InvalidInput, match=r"cannot be written \(No such file or directory\): name another file"):
        write_kit(tmp_path / "none" / "kit.pyz")
    assert [kit] == list(tmp_path.iterdir())
