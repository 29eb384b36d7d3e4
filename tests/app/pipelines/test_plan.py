"""The verb plan: the graph, placements, estimates of workloads, energy and copies, before anything runs."""

import json

import pytest

from leadline.app import settings
from leadline.app.composition import reload_catalog, toolbox
from leadline.app.jobs.journal import open_journal
from leadline.app.pipelines.places import place_tiers
from leadline.app.pipelines.plan import plan_pipeline
from leadline.core.errors import InvalidInput
from leadline.core.plane import EventKind
from leadline.execution.plane.journal import NewEvent
from leadline.pipelines.journal import PipelineEvent
from leadline.pipelines.placement import StagePlanner
from leadline.pipelines.spec import read_pipeline

CONFIG = {
    "model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "n_layer": 12, "n_embd": 768, "n_head": 12,
    "n_positions": 256, "n_ctx": 256, "vocab_size": 1000, "torch_dtype": "float32",
}  # fmt: skip
WORKLOAD = 'model = "config.json"\nbatch = 4\nseq = 128\nsteps = 100\nprecision = "fp32"\n'
PIPELINE = """
[pipeline]
folder = "season"

[tiers.edge]
device = "Jetson Nano"
[tiers.cloud]
device = "A100 SXM4 80GB"
price = "3.60 USD/h"
[tiers.far]
on = "Far:gpu"

[events.images]
files = "incoming/*.jpg"

[stages.train]
command = "python3 train.py"
workload = "train.toml"
on = "images"
tier = TIERS
LIMIT
reads = ["incoming"]
"""
REACH = '[systems.Far]\nhost = "far"\nfolder = "/home/ada/jobs"\nscheduler = "slurm"\n'


@pytest.fixture
def plan(tmp_path, monkeypatch):
    monkeypatch.setenv("LEADLINE_DATA_DIR", str(tmp_path / "data"))
    monkeypatch.chdir(tmp_path)
    toolbox.cache_clear()
    reload_catalog()
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    (tmp_path / "train.toml").write_text(WORKLOAD)
    (tmp_path / "season" / "incoming").mkdir(parents=True)
    (tmp_path / "season" / "incoming" / "1.jpg").write_bytes(b"x" * 10_000_000)

    def planned(tiers='["edge", "cloud"]', limit=""):
        (tmp_path / "pipeline.toml").write_text(PIPELINE.replace("TIERS", tiers).replace("LIMIT", limit))
        return plan_pipeline(tmp_path / "pipeline.toml").stages[0]

    yield planned
    toolbox.cache_clear()


def write_reach(folder):
    (folder / "data").mkdir()
    (folder / "data" / "reach.toml").write_text(REACH)


def test_before_any_run_the_workload_is_estimated_on_the_device_of_each_tier(plan):
    stage = plan()
    edge, cloud = stage.forecasts
    assert (edge.basis, cloud.basis) == ("its workload", "its workload")
    assert edge.elapsed_s.point > 5 * cloud.elapsed_s.point > 0
    assert edge.energy_j == pytest.approx(10 * edge.elapsed_s.point)
    assert cloud.cost_usd == pytest.approx(1e-3 * cloud.elapsed_s.point)
    assert (edge.cost_usd, stage.tier, stage.reads_bytes) == (None, "edge", 10_000_000)


def test_a_deadline_that_the_edge_would_miss_moves_the_stage_to_the_cloud(plan):
    edge = plan().forecast.elapsed_s
    stage = plan(limit=f'deadline = "{1000 * edge.point / 2:.3f} ms"')
    assert stage.tier == "cloud"
    assert "the deadline of" in stage.reason


def test_copies_to_a_system_without_these_files_take_time(plan, tmp_path):
    write_reach(tmp_path)
    far = plan('"far"').forecast
    assert (far.elapsed_s, far.transfer_s) == (None, None)
    with open_journal() as journal:
        copies = [
            {"from": "local", "to": "Far", "moved_bytes": 1e7, "elapsed_s": seconds} for seconds in (9.0, 10.0, 11.0)
        ]
        journal.write(events=[NewEvent(EventKind.STAGED, "", "", copy) for copy in copies])
    assert plan('"far"').forecast.transfer_s.point == pytest.approx(10.0, rel=0.1)
    # Other copies on the path share it, and small ones say nothing about the bandwidth.
    pipeline = read_pipeline(tmp_path / "pipeline.toml")
    transfer_s = place_tiers(pipeline, toolbox().catalog)["far"].transfer_s
    assert transfer_s(1e7, 2).point > 1.5 * transfer_s(1e7, 0).point
    with open_journal() as journal:
        small = {"from": "local", "to": "Far", "moved_bytes": 1000, "elapsed_s": 1.0}
        journal.write(events=[NewEvent(EventKind.STAGED, "", "", small) for _ in range(9)])
    assert plan('"far"').forecast.transfer_s.point == pytest.approx(10.0, rel=0.1)
    assert transfer_s(1000, 0).point == pytest.approx(1.0, rel=0.2)


def test_files_of_events_are_copied_besides_what_a_stage_reads(plan, tmp_path):
    write_reach(tmp_path)
    plan('"far"')
    pipeline = read_pipeline(tmp_path / "pipeline.toml")
    planner = StagePlanner(pipeline=pipeline, tiers=place_tiers(pipeline, toolbox().catalog), past_runs=lambda _: ())
    (tmp_path / "season" / "loose.jpg").write_bytes(b"x" * 500)
    events = [PipelineEvent("images", file, "", file) for file in ("loose.jpg", "incoming/1.jpg", "gone.jpg")]
    assert planner.event_bytes(pipeline.stages["train"], events) == 500.0


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ('on = "Far:gpu"', 'on = "here"\nfolder = "x"', "tier 'far' sees the files of this machine: remove its folder"),
        ('folder = "season"', 'folder = "."', "programs and data in separate folders: name a folder for the data"),
        ('folder = "season"', 'folder = ".."', "programs and data in separate folders: name a folder for the data"),
    ],
)
def test_folders_that_cannot_be_copied_are_refused_by_the_plan(plan, tmp_path, monkeypatch, old, new, reason):
    write_reach(tmp_path)
    plan('"far"')
    monkeypatch.setitem(globals(), "PIPELINE", PIPELINE.replace(old, new))
    with pytest.raises(InvalidInput, match=reason):
        plan('"far"')


def test_only_the_tiers_that_stages_name_are_looked_up(plan, tmp_path):
    plan()
    pipeline = read_pipeline(tmp_path / "pipeline.toml")
    assert [*place_tiers(pipeline, toolbox().catalog)] == ["edge", "cloud"]
    assert settings.data_dir() == tmp_path / "data"
