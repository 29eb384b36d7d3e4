"""A model that was trained is asked on the command line: estimate and recommend, with the figures and the sentences."""

import json
import subprocess
import sys

import pytest

pytest.importorskip("sklearn")

from leadline.core.jobs import JobSpec, JobState, ResourceSpec
from leadline.core.runs import Measurement, Run, Scale
from leadline.estimators.tabular.registry import ESTIMATORS
from leadline.interfaces.cli.main import main
from leadline.training.build import TrainingOrigin, build_model
from leadline.training.model import save_model
from leadline.training.records import TrainingOptions, run_records

NODE = {"node_cpu": "Intel(R) Xeon(R) Gold 6148 CPU @ 2.40GHz", "node_hz": "3700000000"}
ASK = ("--set", "steps=4000", "--set", "kind=b")


def made_run(number, steps, cores, kind):
    """A run of 10 ms a step on one core, half as much again for kind b, with one part in a hundred of noise."""
    seconds = steps * 0.01 / cores * (1.5 if kind == "b" else 1.0) * (1 + 0.01 * (number % 3 - 1))
    words = ("solve", "--steps", str(steps), "--kind", kind, "--threads", str(cores))
    figures = {"elapsed_s": seconds, "host_memory_bytes": 5e8 + 1e4 * steps}
    return Run(
        f"{number:012x}", JobSpec("solver", words, ResourceSpec(cores_per_task=cores)), JobState.COMPLETED,
        "2026-01-01T00:00:00", scale=Scale.FULL_SCALE, tags=NODE, parameters={"steps": steps, "kind": kind},
        measured={name: Measurement(value, "", "test") for name, value in figures.items()},
    )  # fmt: skip


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    sizes = [
        (steps, cores, kind) for steps in (500, 900, 2000, 3500, 5000, 8000) for cores in (1, 2, 4) for kind in "ab"
    ]
    runs = [made_run(number, *size) for number, size in enumerate(sizes)]
    command = ("solve", "--steps", "{steps}", "--kind", "{kind}", "--threads", "{cores}")
    origin = TrainingOrigin("made runs", "2026-01-01", "leadline train solver", command)
    path = tmp_path_factory.mktemp("model") / "solver.npz"
    save_model(build_model(run_records(runs), {"linear": ESTIMATORS["linear"]}, origin, TrainingOptions())[0], path)
    return str(path)


def run(capsys, *arguments):
    code = main(list(arguments))
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_one_configuration_is_estimated_with_its_interval_and_basis(capsys, model):
    code, out, _ = run(capsys, "estimate", model, *ASK, "--set", "cores=4", "--json")
    document = json.loads(out)
    assert code == 0
    fields = (document["schema"], document["application"], document["basis"]["tier"])
    assert fields == ("leadline.estimate/1", "solver", "learned")
    assert pytest.approx(15.0, rel=0.2) == document["elapsed_s"]["point"]
    assert document["elapsed_s"]["low"] < document["elapsed_s"]["point"] < document["elapsed_s"]["high"]
    assert any("linear" in reason for reason in document["basis"]["reasons"])
    assert {"steps": 4000, "kind": "b", "cores": 4}.items() <= document["parameters"].items()


def test_several_configurations_are_a_table_of_varying_parameters(capsys, model):
    code, out, _ = run(capsys, "estimate", model, *ASK, "--vary", "cores=1,2", "--on", "Pitzer:cpu")
    assert code == 0
    assert "solver: steps 4000, kind b" in out
    assert [word for word in out.split() if word in ("cores", "Pitzer:cpu")] == ["cores", "Pitzer:cpu", "Pitzer:cpu"]


def test_a_model_is_named_by_option_or_as_the_workload(capsys, model):
    words = (*ASK, "--on", "Pitzer:cpu", "--json")
    named, alone = (run(capsys, "recommend", *how, *words) for how in (("--model", model), (model,)))
    assert named[0] == 0
    assert named[1] == alone[1]


def test_the_recommendation_is_a_configuration_with_its_request_its_reason_and_its_command(capsys, model):
    code, out, _ = run(capsys, "recommend", model, *ASK, "--on", "Pitzer", "--deadline", "1h")
    assert code == 0
    lines = out.splitlines()
    assert lines[0].startswith("Request Pitzer:")
    assert lines[1] == "Why: the cheapest in USD within the deadline."
    assert "decides the walltime" in lines[2]
    assert any(line.startswith("Run: solve --steps 4000 --kind b --threads ") for line in lines)


def test_hardware_that_no_run_had_is_marked(capsys, model):
    code, out, _ = run(capsys, "recommend", model, *ASK, "--on", "Expanse")
    assert code == 0
    assert "Note: no run had its processor (AMD EPYC 7742), but Intel(R) Xeon(R) Gold 6148" in out
    assert "? no run had this hardware: wider interval" in out


@pytest.mark.parametrize("verb", ["estimate", "recommend"])
@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--set", "memory=16"], "--set memory=16: '16' has no unit: write 16GiB, 16MiB or 16B"),
        (["--set", "steps=10"], "the model needs kind"),
        ([*ASK, "--batch", "3"], "--batch is for workloads"),
        ([*ASK, "--set", "step=3"], "did you mean 'steps'"),
    ],
)
def test_a_question_that_cannot_be_answered_is_one_sentence(capsys, model, verb, words, says):
    code, out, err = run(capsys, verb, model, *words)
    assert (code, out) == (2, "")
    assert says in err
    assert len(err.strip().splitlines()) == 1


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--model", "none.npz"], "none.npz cannot be read"),
        (["config.json", "--set", "a=1"], "--set needs a trained model"),
        (["--model", "a.npz", "config.json"], "exclude each other"),
    ],
)
def test_a_model_that_is_not_there_or_not_alone_is_one_sentence(capsys, words, says):
    code, _, err = run(capsys, "recommend", *words)
    assert code == 2
    assert says in err


def test_when_nothing_fits_the_reasons_and_the_smallest_change_are_shown(capsys, model):
    code, _, err = run(capsys, "recommend", model, *ASK, "--on", "Pitzer:cpu", "--vary", "cores=4", "--deadline", "1s")
    assert code == 3
    assert "rejected Pitzer:cpu" in err
    assert "a deadline of" in err


def test_asking_loads_no_library_that_only_training_needs(model):
    words = ["recommend", model, *ASK, "--on", "Pitzer:cpu", "--json"]
    script = (
        "import sys; from leadline.interfaces.cli.main import main; code = main(sys.argv[1:]); "
        "heavy = [name for name in ('sklearn', 'scipy', 'matplotlib', 'torch') if name in sys.modules]; "
        "sys.exit(code or ', '.join(heavy) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", script, *words], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
