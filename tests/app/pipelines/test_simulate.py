"""What-if: a recorded season is replayed as it was, and with other events, tiers and links."""

import pytest

from leadline.app.composition import toolbox
from leadline.app.pipelines.simulate import SeasonChanges, simulate_pipeline
from leadline.core.errors import InvalidInput, UnknownName
from tests.support.recorded_season import PIPELINE, record_season


@pytest.fixture(autouse=True)
def own_folder(monkeypatch, tmp_path):
    monkeypatch.setenv("LEADLINE_DATA_DIR", str(tmp_path / "data"))
    toolbox.cache_clear()


@pytest.fixture
def season(tmp_path):
    return record_season(tmp_path)


def simulate(file, **changes):
    return simulate_pipeline(file, SeasonChanges(**changes))


def test_without_changes_the_replay_is_the_measured_season(season):
    answer = simulate(season)
    measured, replayed = answer.measured, answer.changed.likely
    assert {name: (stage.runs, stage.events) for name, stage in measured.stages.items()} == {
        "label": (10, 100), "train": (2, 2), "check": (2, 2),
    }  # fmt: skip
    for name, stage in measured.stages.items():
        assert (replayed.stages[name].runs, replayed.stages[name].events) == (stage.runs, stage.events)
    assert replayed.elapsed_s == pytest.approx(measured.elapsed_s, rel=0.05)
    assert replayed.stages["label"].longest_delay_s == pytest.approx(measured.stages["label"].longest_delay_s, rel=0.05)
    assert replayed.tiers["edge"].energy_j == pytest.approx(measured.tiers["edge"].energy_j, rel=0.05)
    assert replayed.tiers["hpc"].cost_usd == pytest.approx(measured.tiers["hpc"].cost_usd, rel=0.05)
    assert answer.changed == answer.replayed
    assert answer.changed.fast.elapsed_s < replayed.elapsed_s < answer.changed.slow.elapsed_s
    assert not answer.notes


def test_ten_times_the_events_wait_and_take_ten_times_the_energy(season):
    answer = simulate(season, events={"images": "10x"})
    label, before = answer.changed.likely.stages["label"], answer.measured.stages["label"]
    assert (label.runs, label.events) == (100, 1000)
    assert label.most_waiting > 10 * before.most_waiting
    assert label.longest_delay_s > 100 > before.longest_delay_s
    # Runs of label take 2 s at 10 W, and the two checks 1 s.
    assert answer.measured.tiers["edge"].energy_j == pytest.approx(220.0)
    assert answer.changed.likely.tiers["edge"].energy_j == pytest.approx(2020.0)
    # The drifts come at the same images of the season, and the folder of labels grows with the images.
    train = answer.changed.likely.tiers["hpc"]
    assert answer.changed.likely.stages["train"].runs == 2
    assert train.busy_s > 1.2 * answer.measured.tiers["hpc"].busy_s
    assert answer.simulated_in_s < 10


def test_without_its_tier_a_stage_is_unknown_unless_another_one_is_like_it(season):
    gone = simulate(season, without=("hpc",))
    assert gone.changed.likely.elapsed_s is None
    assert gone.changed.likely.tiers["cloud"].cost_usd is None
    assert gone.changed.likely.tiers["hpc"].runs == 0
    stages = gone.changed.likely.stages
    assert (stages["train"].longest_delay_s, stages["check"].longest_delay_s) == (None, None)
    assert stages["label"].longest_delay_s > 0
    assert "the time of train at cloud is unknown" in gone.notes[0]
    like = simulate(season, without=("hpc",), like={"cloud": "hpc"})
    assert not like.notes
    cloud = like.changed.likely.tiers["cloud"]
    assert cloud.cost_usd == pytest.approx(like.measured.tiers["hpc"].cost_usd / 2, rel=0.05)


def test_a_slow_link_delays_the_stage_behind_it(season):
    answer = simulate(season, bandwidth={"hpc": "1kB/s"})
    before, after = answer.replayed.likely, answer.changed.likely
    # The second run reads 100 kB.
    extra_s = after.stages["train"].longest_delay_s - before.stages["train"].longest_delay_s
    assert extra_s > 90
    assert after.tiers["hpc"].cost_usd > before.tiers["hpc"].cost_usd
    assert after.stages["label"] == before.stages["label"]


def test_a_pipeline_that_never_ran_is_simulated_from_stated_rates(tmp_path):
    file = tmp_path / "traps.toml"
    file.write_text(PIPELINE)
    with pytest.raises(InvalidInput, match="has no events yet: state a rate"):
        simulate(file)
    answer = simulate(file, events={"images": "60/min", "drifted": "2/h"}, length="1h")
    assert (answer.measured, answer.replayed) == (None, None)
    assert (answer.changed.likely.stages["label"].events, answer.changed.likely.stages["train"].events) == (3600, 2)
    assert answer.changed.likely.elapsed_s is None
    assert any("label at edge is unknown" in note for note in answer.notes)
    quiet = simulate(file, events={"images": "60/min"}, length="1h")
    assert any("drifted was never recorded" in note for note in quiet.notes)


@pytest.mark.parametrize(
    ("changes", "error", "words"),
    [
        ({"events": {"image": "2x"}}, UnknownName, "event of --events: 'image'"),
        ({"events": {"images": "many"}}, InvalidInput, "write for example images=10x, or 100/min"),
        ({"events": {"images": "1/fortnight"}}, InvalidInput, "write for example images=10x, or 100/min"),
        ({"events": {"images": "nanx"}}, InvalidInput, "is no number of events"),
        ({"events": {"images": "1e9x"}}, InvalidInput, "at most 2,000,000 are simulated"),
        ({"events": {"drifted": "2x"}}, InvalidInput, "drifted has no recorded events from outside"),
        ({"without": ("moon",)}, UnknownName, "moon"),
        ({"without": ("edge",)}, InvalidInput, "may run at edge only"),
        ({"bandwidth": {"hpc": "fast"}}, InvalidInput, "hpc=1MB/s"),
        ({"bandwidth": {"hpc": "0B/s"}}, InvalidInput, "to leave a tier out"),
        ({"like": {"cloud": "sun"}}, UnknownName, "sun"),
    ],
)
def test_a_change_that_cannot_be_made_is_refused(season, changes, error, words):
    with pytest.raises(error, match=words.replace("(", r"\(")):
        simulate(season, **changes)
