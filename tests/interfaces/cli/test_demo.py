"""``leadline demo``: what it refuses, and how its two tables show jobs that were predicted and run."""

import io
import json

import pytest

from leadline.app.composition import toolbox
from leadline.app.demo.run import DEMO_SYSTEMS, DemoJob
from leadline.app.estimate.recommend import recommend
from leadline.app.workloads.options import WorkloadOptions
from leadline.app.workloads.read import read_workload
from leadline.core.documents import from_json, to_json
from leadline.core.estimate import Basis, Estimate, Interval, Target, Tier
from leadline.core.jobs import JobSpec, JobState, ResourceSpec
from leadline.core.recommendation import Constraints
from leadline.core.runs import Measurement, Run
from leadline.interfaces.cli import demo
from leadline.interfaces.cli.main import main

RUN = Run(
    "0123456789ab",
    JobSpec("digits_cnn", ("python", "digits_cnn.py"), ResourceSpec()),
    JobState.COMPLETED,
    "2026-01-02T03:04:05",
    predicted=Estimate(
        Target("cpu"), "white-box", Basis(Tier.CALIBRATED), elapsed_s=Interval(11.0, 8.0, 16.0),
        host_memory_bytes=Interval(4.0e8, 3.0e8, 6.0e8), step_s=Interval(0.01, 0.008, 0.02),
    ),
    measured={
        "elapsed_s": Measurement(10.0, "s", "wall clock"),
        "host_memory_bytes": Measurement(5.0e8, "B", "sampled"),
    },
)  # fmt: skip


@pytest.fixture
def job(tmp_path):
    """A job as the demo leaves it; the run is one that was written and read back, the recommendations are real."""
    config = tmp_path / "config.json"
    config.write_text(json.dumps({"model_type": "gpt2", "n_embd": 64, "n_layer": 2, "n_head": 4, "vocab_size": 1000}))
    work = read_workload([str(config)], WorkloadOptions(steps=100, precision="fp16"))
    answers = {site: recommend(work, toolbox(), Constraints(), on=[site]) for site in DEMO_SYSTEMS}
    return DemoJob("digits_cnn", answers, from_json(to_json(RUN), Run, label="the stored run"))


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--budget", "5"], "--budget is 5, but it must be at least 10 seconds"),
        (["--budget", "soon"], "invalid value for '--budget'"),
        (["--quick"], "no such option: --quick; run leadline demo --help"),
        (["mine.py"], "got unexpected extra argument (mine.py)"),
    ],
)
def test_the_demo_refuses_invalid_options_before_running(words, says, capsys, tmp_path):
    assert main(["demo", *words]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert says in printed.err
    assert not (tmp_path / "data").exists()


def test_the_comparison_shows_each_quantity_that_is_known_on_both_sides(job, capsys):
    demo._print_comparison([job])
    header, time, memory = [line.rstrip() for line in capsys.readouterr().out.splitlines()]
    assert header.split() == ["job", "quantity", "predicted", "90", "%", "range", "measured", "error"]
    assert time.split() == ["digits_cnn", "elapsed", "11.0", "s", "8.00", "s", "–", "16.0", "s", "10.0", "s", "+10%"]
    assert memory.split()[:3] == ["digits_cnn", "host", "memory"]
    assert memory.endswith("-20%")


def test_recommendations_show_a_request_for_each_site(job, capsys):
    demo._recommended(job)
    printed = capsys.readouterr().out
    assert "digits_cnn: requests on other systems" in printed
    rows = [line for line in printed.splitlines() if any(line.startswith(f"  {site}") for site in DEMO_SYSTEMS)]
    assert len(DEMO_SYSTEMS) == len(rows)
    assert all("00:05:00" in row or "would make" in row or "nothing fits" in row for row in rows)


def test_a_site_where_nothing_fits_is_reported(job, capsys, tmp_path):
    config = tmp_path / "config.json"
    work = read_workload([str(config)], WorkloadOptions(steps=10**9, precision="fp16"))
    nothing = recommend(work, toolbox(), Constraints(deadline_s=60.0), on=["Pitzer"])
    demo._recommended(DemoJob("digits_cnn", {"Pitzer": nothing}, job.run))
    assert nothing.smallest_change[:20] in " ".join(capsys.readouterr().out.split())


def test_the_tables_hold_without_a_terminal_too(job, monkeypatch):
    stream = io.StringIO()
    monkeypatch.setattr("sys.stdout", stream)
    demo._recommended(job)
    assert "\x1b" not in stream.getvalue()
