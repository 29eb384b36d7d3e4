"""The public Python API: the same answers as the command line, as typed objects."""

import json
import subprocess
import sys
from datetime import timedelta
from pathlib import Path

import msgspec
import pytest

import leadline
from leadline.app.jobs.plane_options import PlaneOptions
from leadline.app.workloads.options import WorkloadOptions
from leadline.core.errors import InvalidInput
from leadline.core.jobs import JobState
from leadline.interfaces.cli.command import run_command
from leadline.interfaces.cli.estimate import estimate as estimate_command
from leadline.interfaces.python.verbs import WorkloadKeywords

A100, H100 = "A100 SXM4 80GB", "H100 SXM5 80GB"
CONFIG = {
    "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 256, "intermediate_size": 512,
    "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 4, "vocab_size": 1000,
    "max_position_embeddings": 512, "torch_dtype": "bfloat16",
}  # fmt: skip


@pytest.fixture(autouse=True)
def _own_folders(tmp_path, monkeypatch):
    monkeypatch.setenv("LEADLINE_DATA_DIR", str(tmp_path / "data"))
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def config(tmp_path):
    path = tmp_path / "config.json"
    path.write_text(json.dumps(CONFIG))
    return path


def test_an_estimate_is_the_document_that_the_command_prints(config, capsys):
    answer = leadline.estimate(config, batch=4, seq=128, on=A100)
    options = ["--batch", "4", "--seq", "128", "--on", A100, "--json"]
    assert run_command(estimate_command, "estimate", [str(config), *options]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert json.loads(msgspec.json.encode(answer.to_dict())) == printed
    assert answer.best.step_s.point == printed["step_s"]["point"]


def test_estimates_of_several_places_are_a_sequence_whose_best_is_the_fastest(config):
    answer = leadline.estimate(str(config), batch=4, seq=128, on=[A100, H100])
    assert [estimate.target.device for estimate in answer] == [A100, H100]
    assert answer.best is min(answer, key=lambda estimate: estimate.elapsed_s.point)
    assert len(answer) == 2


def test_answers_are_tables_in_a_terminal_and_in_a_notebook(config):
    answer = leadline.estimate(config, batch=4, seq=128, on=A100)
    assert str(answer).splitlines()[1].split()[:3] == ["place", "device", "step"]
    assert A100 in repr(answer)
    html = answer._repr_html_()
    assert html.count("<tr>") == 2
    assert A100 in html


def test_fit_and_recommend_answer_with_the_nouns_of_the_command_line(config):
    reports = leadline.fit(config, batch=4, seq=128, on=A100)
    assert reports.fits
    assert reports[0].checks[0].kind == "GPU"
    assert reports.to_dict()["schema"] == "leadline.fit/1"
    answer = leadline.recommend(config, batch=4, seq=128, on="Pitzer", deadline="12h")
    assert answer.best is not None
    assert answer.best.system == "Pitzer"
    assert "Pitzer" in answer._repr_html_()
    assert leadline.recommend(config, batch=4, seq=128, on="Pitzer", budget=0.0).best is None


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda config: leadline.recommend(config, deadline=12), "'12' has no unit: write 12h, 12m or 12s"),
        (lambda config: leadline.recommend(config, deadline=0.5), "'0.5' has no unit"),
        (lambda config: leadline.recommend(config, deadline=timedelta(0)), "it must be above 0"),
        (lambda config: leadline.recommend(config, risk=2), "it must be between 0 and 1"),
        (lambda _: leadline.submit(["true"], time=60), "'60' has no unit: write 60h, 60m or 60s"),
        (lambda _: leadline.submit(["true"], memory=16), "'16' has no unit"),
        (lambda _: leadline.submit(["true"], options=PlaneOptions(deadline=12)), "'12' has no unit"),
        (lambda _: leadline.submit(["true"], options=PlaneOptions(checkpoint_before=60)), "'60' has no unit"),
    ],
)
def test_a_time_or_a_size_without_a_unit_is_refused(config, call, says):
    with pytest.raises(InvalidInput, match=says):
        call(config)


def test_a_time_is_a_text_or_a_timedelta(config):
    texts, deltas = (
        leadline.recommend(config, batch=4, seq=128, on="Pitzer", deadline=deadline).to_dict()
        for deadline in ("90m", timedelta(minutes=90))
    )
    assert texts == deltas
    soon = PlaneOptions(deadline=timedelta(days=1, hours=2))
    job = leadline.submit(["true"], time=timedelta(minutes=1), memory="1G", options=soon)
    assert job.wait(timeout_s=60).state is JobState.COMPLETED


def test_a_job_is_submitted_followed_and_explained_by_its_handle():
    job = leadline.submit(["sh", "-c", "echo trained"], on="local")
    assert job.wait(timeout_s=60).state is JobState.COMPLETED
    assert job.logs() == "trained"
    assert job.explain().job.key == job.key
    assert leadline.jobs(all_jobs=True) == (job,)
    assert leadline.Job(job.key).status().closed


def test_a_job_that_does_not_end_in_time_raises_and_can_be_cancelled():
    job = leadline.submit(["sleep", "60"], on="local")
    with pytest.raises(TimeoutError, match=r"has not ended within 0.1 s"):
        job.wait(timeout_s=0.1)
    job.cancel()
    assert job.wait(timeout_s=60).state is JobState.CANCELLED


def test_an_array_gives_a_handle_for_each_element():
    handles = leadline.submit(["sh", "-c", "echo $SLURM_ARRAY_TASK_ID"], on="local", array="3-4")
    assert [handle.wait(timeout_s=60).state for handle in handles] == [JobState.COMPLETED] * 2
    assert [handle.logs() for handle in handles] == ["3", "4"]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: leadline.estimate("nothing.json"), "nothing.json does not exist"),
        (lambda: leadline.estimate(["python", "train.py"], values={"grid": 4}), "are for a trained model"),
        (lambda: leadline.estimate("model.npz", batch=4), "describes a workload"),
        (lambda: leadline.submit(["sleep", "1"], on="nowhere:gpu"), "nowhere"),
        (lambda: leadline.Job("ffffffffffff").status(), "ffffffffffff"),
    ],
)
def test_bad_input_is_one_sentence(call, message):
    with pytest.raises(leadline.LeadlineError, match=message) as caught:
        call()
    assert "\n" not in str(caught.value)


def test_an_unknown_estimator_names_the_known_ones(config):
    with pytest.raises(leadline.LeadlineError, match="kernels"):
        leadline.estimate(config, on=A100, estimator="kernel")


def test_the_catalog_is_listed():
    assert A100 in [device.name for device in leadline.devices()]
    assert "Pitzer" in [system.name for system in leadline.systems()]


def test_the_keywords_are_the_workload_options():
    assert list(WorkloadKeywords.__annotations__) == [field.name for field in msgspec.structs.fields(WorkloadOptions)]


def test_importing_leadline_imports_nothing_else_of_it():
    program = "import sys, leadline; print(sorted({'numpy', 'click', 'typing'} & {*sys.modules}), end=' '); "
    program += "print([name for name in sys.modules if name.startswith('leadline')])"
    listed = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert listed.strip() == "[] ['leadline']"


def test_every_public_name_can_be_imported():
    for name in leadline.__all__:
        assert getattr(leadline, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        leadline.nothing  # noqa: B018


def test_a_users_file_passes_mypy_strict(tmp_path):
    file = tmp_path / "user.py"
    file.write_text(
        "import leadline\n"
        "answer = leadline.estimate('config.json', batch=4, seq=2048, on='A100 SXM4 80GB')\n"
        "step_s: float = answer.best.step_s.point if answer.best.step_s else 0.0\n"
        "job = leadline.submit(['python', 'train.py'], on='slurm:gpu')\n"
        "state: str = job.wait().state.value\n"
        "handles = leadline.submit(['python', 'train.py'], on='slurm:gpu', array='0-9')\n"
        "keys: list[str] = [handle.key for handle in handles]\n"
        "best = leadline.recommend('config.json', deadline='12h').best\n"
        "device: str | None = best.device if best else None\n"
    )
    command = [sys.executable, "-m", "mypy", "--strict", "--config-file=", f"--cache-dir={tmp_path}", str(file)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.returncode == 0, done.stdout


@pytest.mark.slow
def test_the_tutorial_notebook_runs(tmp_path):
    nbformat, client = pytest.importorskip("nbformat"), pytest.importorskip("nbclient")
    source = Path(__file__).parents[3] / "docs" / "tutorials" / "python-api.ipynb"
    notebook = nbformat.read(source, as_version=4)
    client.NotebookClient(notebook, timeout=120, resources={"metadata": {"path": str(tmp_path)}}).execute()
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    assert any("text/html" in output.get("data", {}) for output in outputs)
    assert any("COMPLETED" in output.get("data", {}).get("text/plain", "") for output in outputs)
