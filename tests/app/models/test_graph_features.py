"""White-box figures of commands: what they are, when they are traced again, and what cannot be traced."""

import pytest

from leadline.app.models.graph_features import TraceableCommand, graph_features, trace_features
from leadline.core.errors import InvalidInput, Untraceable
from leadline.core.graph import LoopFacts, Op, OpGraph, OpKind, Stage, StorageEvent, TracedJob

STEP = OpGraph(
    (
        Op("mm", OpKind.GEMM, Stage.FORWARD, "float32", 100.0, 30.0, 10.0, count=3),
        Op("add_", OpKind.OPTIMIZER, Stage.OPTIMIZER, "float32", 0.0, 5.0, 5.0, kernels=4),
    ),
    (StorageEvent(0, 0, 1000), StorageEvent(0, 1, 500), StorageEvent(1, 1, -500)),
    parameters=250,
)


class Source:
    """A front-end that always gives the same step, and remembers what it was asked."""

    def __init__(self, failure=None):
        self.asked, self.failure = [], failure

    def __call__(self, workload, *, device_type="cuda"):
        self.asked.append((workload.model.argv, workload.model.workdir, device_type))
        if self.failure:
            raise self.failure
        return TracedJob(STEP, LoopFacts(steps_per_epoch=10, epochs=3.0))


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("LEADLINE_DATA_DIR", str(tmp_path / "data"))
    (tmp_path / "train.py").write_text("import net\n")
    (tmp_path / "net.py").write_text("width = 1\n")
    return tmp_path


def test_the_figures_are_those_of_a_step_and_of_the_loop_around_it():
    assert graph_features(TracedJob(STEP, LoopFacts(steps_per_epoch=10, epochs=3.0))) == {
        "graph_flops": 300.0, "graph_bytes": 130.0, "graph_kernels": 7.0, "graph_parameters": 250.0,
        "graph_peak_bytes": 1500.0, "graph_steps": 30.0,
    }  # fmt: skip


def test_unknown_loop_sizes_are_absent():
    assert "graph_steps" not in graph_features(TracedJob(STEP))


def test_a_script_is_found_from_the_folder_of_its_runs_and_traced_for_their_device(folder):
    source = Source()
    trace_features([TraceableCommand(("python", "train.py", "3"), str(folder), gpu=True)], source, jobs=1)
    assert [(("python", str(folder / "train.py"), "3"), str(folder), "cuda")] == source.asked


def test_a_command_is_traced_again_only_where_a_file_beside_its_script_has_changed(folder):
    command, source = TraceableCommand(("python", "train.py"), str(folder)), Source()
    first = trace_features([command, command], source, jobs=2)
    assert first == trace_features([command, command], source, jobs=2)
    assert len(source.asked) == 1
    (folder / "net.py").write_text("width = 1024\n")
    trace_features([command], source, jobs=1)
    assert len(source.asked) == 2
    (folder / "models").mkdir()
    (folder / "models" / "net.py").write_text("width = 1024\n")
    trace_features([command], source, jobs=1)
    assert len(source.asked) == 3


def test_figures_that_were_cut_short_are_made_again(folder):
    command, source = TraceableCommand(("python", "train.py"), str(folder)), Source()
    whole = trace_features([command], source, jobs=1)
    (kept,) = (folder / "data" / "traces").iterdir()
    kept.write_bytes(kept.read_bytes()[:-5])
    assert whole == trace_features([command], source, jobs=1)
    assert len(source.asked) == 2


def test_an_untraceable_command_is_named_and_not_cached(folder):
    commands = [TraceableCommand(("python", "train.py", str(number)), str(folder)) for number in range(4)]
    with pytest.raises(InvalidInput, match=r"cannot trace python train\.py 0: it trains nothing"):
        trace_features(commands, Source(Untraceable("it trains nothing")), jobs=1)
    assert not (folder / "data" / "traces").exists()
