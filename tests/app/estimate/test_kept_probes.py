"""A probe of a command is used by the next estimate of the same command on this machine, and by no other."""

import os
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from leadline.app import settings
from leadline.app.estimate.estimate import Toolbox, estimate
from leadline.app.estimate.kept_probes import ENVIRONMENT, file_digests, nearby_modules
from leadline.app.jobs.probe import ProbeLimits, probe
from leadline.app.workloads.options import WorkloadOptions
from leadline.app.workloads.read import read_workload
from leadline.core.errors import UnknownName
from leadline.core.estimate import Basis, Estimate, Interval, Target, Tier
from leadline.core.graph import OpGraph, TracedJob
from leadline.core.hardware import Calibration, Device, DeviceKind
from leadline.core.workload import ModelKind

LOOP = "import time\nfor epoch in range(1000):\n    for i in range(10): time.sleep(0.002)\n"
TRACED = Interval(5000.0, 1000.0, 20_000.0)
HERE = Device("This CPU", "amd", DeviceKind.CPU, calibration=Calibration("now", "torch", 1))
ELSEWHERE = Device("A100", "NVIDIA", DeviceKind.GPU)


class TwoDevices:
    """A catalog of this machine's calibrated processor and of a GPU elsewhere."""

    def devices(self):
        return [HERE, ELSEWHERE]

    def device(self, name):
        return {device.name: device for device in self.devices()}[name]

    def system(self, name):
        raise UnknownName("system", name, [])


@dataclass
class Tracing:
    """An estimator that answers the same for each device."""

    name: str = "tracing"

    def estimate(self, _workload, _job, device, **_):
        basis = Basis(Tier.SPECS, ("5000 s by tracing",))
        return Estimate(Target(device.name), self.name, basis, elapsed_s=TRACED, host_memory_bytes=Interval(1, 1, 1))


TOOLS = Toolbox(TwoDevices(), {ModelKind.COMMAND: lambda *_, **__: TracedJob(OpGraph(()))}, Tracing())


@pytest.fixture(autouse=True)
def place(tmp_path, monkeypatch):
    monkeypatch.setenv("LEADLINE_DATA_DIR", str(tmp_path / "data"))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(path for path in sys.path if path))
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    Path("train.py").write_text(LOOP)
    return tmp_path


def probed(*words):
    return probe((sys.executable, "train.py", *words), ProbeLimits(time_s=0.5)).forecast.elapsed_s


def estimated(*words, on=("local",), **options):
    return estimate(read_workload((sys.executable, "train.py", *words), WorkloadOptions(**options)), TOOLS, on=on)


def test_the_next_estimate_of_the_same_command_uses_a_new_probe():
    assert estimated().estimates[0].elapsed_s == TRACED
    forecast = probed()
    answer = estimated().estimates[0]
    assert 10 < forecast.point < 100
    assert answer.elapsed_s == forecast
    assert answer.estimator == "tracing, probe"
    assert answer.basis.reasons[0].startswith("this command was probed on this machine at 2")
    assert answer.host_memory_bytes.point > 10**6  # the peak that the probe measured
    Path("train.py").write_text(LOOP.replace("1000", "500"))
    again = probed()
    assert again.point < 0.8 * forecast.point
    assert estimated().estimates[0].elapsed_s == again


def test_another_script_argument_folder_or_option_does_not_use_it(place, monkeypatch):
    probed()
    assert estimated("--lr", "0.1").estimates[0].elapsed_s == TRACED
    assert estimated(epochs=3).estimates[0].elapsed_s == TRACED
    assert estimated(load_s=0.1).estimates[0].elapsed_s == TRACED
    Path("train.py").write_text(LOOP + "print(1)\n")
    assert estimated().estimates[0].elapsed_s == TRACED
    Path("train.py").write_text(LOOP)
    assert estimated().estimates[0].elapsed_s != TRACED
    (place / "other").mkdir()
    (place / "other" / "train.py").write_text(LOOP)
    monkeypatch.chdir(place / "other")
    assert estimated().estimates[0].elapsed_s == TRACED


@pytest.mark.parametrize("module", ["net.py", "models/net.py", "models/deep/net.py"])
def test_an_edited_module_that_the_script_may_import_turns_the_probe_off(module):
    Path(module).parent.mkdir(parents=True, exist_ok=True)
    Path(module).write_text("width = 8\n")
    probed()
    assert estimated().estimates[0].elapsed_s != TRACED
    Path(module).write_text("width = 16\n")
    answer = estimated()
    assert answer.estimates[0].elapsed_s == TRACED
    assert answer.notes[-1].endswith(f"{module} has changed since; probe it again")


def test_a_module_of_the_working_folder_counts_where_python_looks_there(monkeypatch):
    for folder in ("code", "lib", "elsewhere"):
        Path(folder).mkdir()
        Path(folder, f"in_{folder}.py").write_text("width = 8\n")
    Path("code/train.py").write_text(LOOP)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(["lib", os.environ["PYTHONPATH"]]))
    plain, module = (sys.executable, "code/train.py"), (sys.executable, "-m", "code.train")
    here = Path.cwd()

    def modules(words):
        return {Path(name).name for name in file_digests(words, here) if Path(name).name.startswith("in_")}

    assert modules(plain) == {"in_code.py", "in_lib.py"}
    assert modules(module) == {"in_code.py", "in_lib.py", "in_elsewhere.py"}


def test_installed_packages_and_hidden_folders_are_no_modules_of_the_script():
    for folder in (".git", "__pycache__", "venv/lib", "env/site-packages/torch", "miniconda/lib"):
        Path(folder).mkdir(parents=True)
        Path(folder, "net.py").write_text("width = 8\n")
    Path("venv/pyvenv.cfg").touch()
    Path("miniconda/conda-meta").mkdir()
    Path("loop").symlink_to(".")
    assert [path.name for path in nearby_modules(Path())] == ["train.py"]


@pytest.mark.parametrize(
    ("name", "source", "counts"),
    [
        ("OMP_NUM_THREADS", LOOP, True),
        ("CUDA_VISIBLE_DEVICES", LOOP, True),
        ("LR", "import os\nos.environ.get('LR')\n" + LOOP, True),
        ("SHLVL", LOOP, False),
    ],
)
def test_a_variable_counts_if_a_framework_or_the_script_reads_it(monkeypatch, name, source, counts):
    Path("train.py").write_text(source)
    monkeypatch.delenv(name, raising=False)
    probed()
    monkeypatch.setenv(name, "7")
    answer = estimated()
    assert (answer.estimates[0].elapsed_s == TRACED) == counts
    assert any("the environment has changed since" in note for note in answer.notes) == counts


def test_another_version_of_an_installed_package_is_another_environment(place):
    packages = place / "env" / "lib" / "python3.11" / "site-packages"
    python = place / "env" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.symlink_to(sys.executable)
    (packages / "torch-2.1.0.dist-info").mkdir(parents=True)
    before = file_digests((str(python), "train.py"), Path.cwd())
    assert before == file_digests((str(python), "train.py"), Path.cwd())
    (packages / "torch-2.1.0.dist-info").rename(packages / "torch-2.2.0.dist-info")
    after = file_digests((str(python), "train.py"), Path.cwd())
    assert {name for name in before if before[name] != after[name]} == {ENVIRONMENT}


def test_a_file_that_the_job_writes_is_no_part_of_the_command():
    Path("train.py").write_text("import time\nopen('log.txt', 'a').write('x')\n" + LOOP)
    Path("config.yaml").write_text("lr: 0.1\n")
    probed("log.txt", "config.yaml")
    Path("log.txt").write_text("longer")
    assert estimated("log.txt", "config.yaml").estimates[0].elapsed_s != TRACED
    Path("config.yaml").write_text("lr: 0.2\n")
    assert estimated("log.txt", "config.yaml").estimates[0].elapsed_s == TRACED


def test_other_devices_only_mention_the_probe():
    probed()
    answer = estimated(on=("A100",))
    assert answer.estimates[0].elapsed_s == TRACED
    assert "the whole job takes" in answer.notes[-1]
    assert answer.notes[-1].endswith("--on local uses that")
    assert [each.elapsed_s == TRACED for each in estimated(on=("A100", "local")).estimates] == [True, False]


def test_a_damaged_probe_is_told_and_not_used():
    probed()
    (file,) = (settings.data_dir() / "probes").iterdir()
    assert file.stat().st_mode & 0o077 == 0
    file.write_text("{")
    answer = estimated()
    assert answer.estimates[0].elapsed_s == TRACED
    assert "the probe of this command is not used: " in answer.notes[-1]


def test_a_whole_job_that_was_measured_has_the_spread_between_runs():
    Path("train.py").write_text("import time\nfor epoch in range(10): time.sleep(0.01)\n")
    whole = probed()
    answer = estimated().estimates[0].elapsed_s
    assert whole.low == whole.point == answer.point
    assert answer.low < answer.point < answer.high
