"""Whole runs on this machine: into one file, through crashes, hangs and kills, and as one file that travels."""

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
import zipfile
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

pytest.importorskip("torch")

from leadline.kit import KitError
from leadline.kit.command import summary_sentence
from leadline.kit.design import DesignSettings, MeasurementPoint, design_points
from leadline.kit.pack import pack_kit
from leadline.kit.run import MeasureOptions, run_measurements
from leadline.kit.worker import Worker, WorkerCrashed, WorkerTimedOut

SRC = str(Path(__file__).parents[2] / "src")
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join([SRC, *filter(None, sys.path)])}
REQUEST = {"device": "cpu", "quick": True, "ops": False, "header": False}


def read(path):
    header, *rows = [json.loads(line) for line in Path(path).read_text().splitlines()]
    return header, rows


def command(out, *more):
    words = ["--out", str(out), "--device", "cpu", "--quick", "--no-ops", *more]
    return [sys.executable, "-m", "leadline.kit", *words]


pytestmark = pytest.mark.timeout(1800)
PATIENCE_S = 600
"""Time limit of whatever a test waits for. A busy machine may take long, and an idle one never waits for it."""


def wait_for(condition):
    until = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.05)


def lines(path):
    return path.read_bytes().count(b"\n") if path.exists() else 0


class EnoughPoints(Exception):
    """The file holds as many points as a test wants."""


def run_until(options, points):
    """Run until so many points are in the file; return the last summary, and every row as it was announced."""
    announced = []
    summaries = []

    def count(summary, row):
        announced.append(row)
        summaries[:] = [summary]
        if summary.in_file >= points:
            raise EnoughPoints

    with pytest.raises(EnoughPoints):
        run_measurements(options, count)
    return summaries[0], announced


@pytest.fixture(scope="module")
def quick(tmp_path_factory):
    """Measure a few points; return the options, the last summary, and every row as it was announced."""
    options = MeasureOptions(str(tmp_path_factory.mktemp("kit") / "rows.jsonl"), minutes=60, device="cpu", quick=True,
                             point_s=PATIENCE_S)  # fmt: skip
    return (options, *run_until(options, 6))


@pytest.mark.slow
def test_a_run_writes_a_header_and_the_first_points_of_the_design(quick):
    options, summary, announced = quick
    header, rows = read(options.out)
    assert (header["schema"], header["device"]["type"]) == ("leadline.measure/1", "cpu")
    assert header["rates"]["float32"] > 0
    assert header["energy"]["reason"] == "there is no meter for a CPU"
    assert announced == rows
    expected = [point.key for point in design_points(DesignSettings(**header["design"]))]
    assert expected[:6] == [row["key"] for row in rows]
    assert (summary.in_file, summary.left) == (6, len(expected) - 6)
    assert f"{options.out} holds 6; {summary.left} of the design left" in summary_sentence(summary)


@pytest.mark.slow
def test_a_run_ends_when_its_time_is_up(quick, tmp_path):
    again = tmp_path / "again.jsonl"
    again.write_bytes(Path(quick[0].out).read_bytes())
    summary = run_measurements(replace(quick[0], out=str(again), minutes=0.001, ops=False))
    assert (summary.in_file, summary.outcomes) == (6, {})
    assert summary.left == quick[1].left


@pytest.mark.slow
def test_a_row_holds_time_memory_and_ops(quick):
    _, rows = read(quick[0].out)
    completed = [row for row in rows if row["outcome"] == "ok"]
    assert len(completed) >= 0.6 * len(rows)
    for row in completed:
        assert row["step_s"] > 0
        assert row["samples"] >= 3
        assert row["memory"]["peak_host_bytes"] is None or row["memory"]["peak_host_bytes"] > 1e7
        assert row["ops"] or "LSTM" in row["ops_reason"]  # oneDNN has 16-bit LSTMs on some calls and processors only
        assert row["energy"] is None
        assert row["wall_s"] >= row["took_s"] >= row["stepping_s"] > 0
    assert len(Path(quick[0].out).read_bytes()) / len(rows) < 50e6 / 500


@pytest.mark.slow
def test_a_second_run_continues_the_first(quick, tmp_path):
    options, first, _ = quick
    again = tmp_path / "again.jsonl"
    again.write_bytes(Path(options.out).read_bytes()[:-20])  # cut within the last row
    second, announced = run_until(replace(options, out=str(again), ops=False), first.in_file + 1)
    header, rows = read(again)
    assert len({row["key"] for row in rows}) == len(rows) == second.in_file == first.in_file + 1
    assert announced == rows[-2:]
    assert [point.key for point in design_points(DesignSettings(**header["design"]))][: len(rows)] == [
        row["key"] for row in rows
    ]


@pytest.mark.slow
@pytest.mark.parametrize(("change", "word"), [({"seed": 3}, "--seed (0)"), ({"quick": False}, "--quick (True)")])
def test_a_file_is_not_resumed_with_another_design(quick, change, word):
    before = Path(quick[0].out).read_bytes()
    with pytest.raises(KitError) as caught:
        run_measurements(replace(quick[0], **change))
    assert f"was begun with another {word}: leave it as it was" in str(caught.value)
    assert Path(quick[0].out).read_bytes() == before


@pytest.mark.slow
def test_random_kills_neither_lose_nor_duplicate_rows(tmp_path):
    out = tmp_path / "rows.jsonl"
    chance = random.Random(7)  # noqa: S311 - moments to kill at
    kept = []
    for kill in range(4):
        process = subprocess.Popen(command(out), env=ENVIRONMENT, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
        wait_for(lambda: lines(out) >= len(kept) + 2)  # noqa: B023 - it is called within the loop
        time.sleep(chance.uniform(0.0, 2.0))
        workers = psutil.Process(process.pid).children(recursive=True)
        process.send_signal(signal.SIGKILL)
        process.wait()
        _, alive = psutil.wait_procs(workers, timeout=PATIENCE_S)
        assert not alive, "a worker outlived its parent"
        whole = out.read_bytes().rpartition(b"\n")[0].decode().splitlines()
        rows = [json.loads(line) for line in whole[1:]]
        assert rows[: len(kept)] == kept, f"kill {kill} lost a row"
        assert len(rows) > len(kept)
        kept = rows
    last = subprocess.run(command(out, "--minutes", "0.3", "--json"), env=ENVIRONMENT, capture_output=True, check=False)
    assert last.returncode == 0, last.stderr
    header, rows = read(out)
    keys = [row["key"] for row in rows]
    assert rows[: len(kept)] == kept
    assert [point.key for point in design_points(DesignSettings(**header["design"]))][: len(keys)] == keys
    assert json.loads(last.stdout)["in_file"] == len(keys)


def test_a_hang_is_killed_and_larger_batches_are_skipped(tmp_path):
    out = tmp_path / "rows.jsonl"
    rows = []

    def stop_after_two(_, row):
        rows.append(row)
        if len(rows) == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_measurements(MeasureOptions(str(out), device="cpu", quick=True, point_s=0.01), stop_after_two)
    assert [row["outcome"] for row in rows] == ["timeout", "timeout"]
    assert rows[0]["reason"] == "it took longer than 0.01 s"
    assert read(out)[1] == rows


def test_a_crash_differs_from_a_hang():
    worker = Worker(sys.executable, REQUEST)
    worker.hello()
    pid = worker._process.pid
    point = vars(MeasurementPoint("resnet18", 224, "training", "fp32", 64, "sgd"))
    threading.Timer(0.5, os.kill, (pid, signal.SIGSEGV)).start()
    with pytest.raises(WorkerCrashed, match="signal SIGSEGV"):
        worker.measure(point, PATIENCE_S)
    assert not psutil.pid_exists(pid)
    second = Worker(sys.executable, REQUEST)
    second.hello()
    with pytest.raises(WorkerTimedOut):
        second.measure(point, 0.2)
    assert not psutil.pid_exists(second._process.pid)


def test_a_python_without_torch_is_refused_in_one_sentence(tmp_path):
    bare = tmp_path / "bare"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(bare)], check=True)
    with pytest.raises(KitError) as caught:
        run_measurements(
            MeasureOptions(str(tmp_path / "rows.jsonl"), device="cpu", python=str(bare / "bin" / "python"))
        )
    assert str(caught.value) == f"{bare}/bin/python has no torch: name the Python of an environment that has it"
    assert not (tmp_path / "rows.jsonl").exists()


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"device": "abacus"}, "--device abacus is not known: give auto, cpu or cuda"),
        ({"minutes": 0}, "--minutes 0 is no time to measure in"),
        ({"minutes": float("nan")}, "--minutes nan is no time to measure in"),
        ({"python": "/nowhere/python"}, "/nowhere/python cannot be started (No such file or directory)"),
        ({"out": "/nowhere/rows.jsonl"}, "/nowhere/rows.jsonl cannot be written (No such file or directory): name"),
        ({"out": "/tmp"}, "/tmp cannot be written (Is a directory): name another file with --out"),  # noqa: S108 - it is never written to
    ],
)
def test_an_impossible_request_is_refused_and_leaves_no_file(change, says, tmp_path):
    options = replace(MeasureOptions(str(tmp_path / "rows.jsonl"), device="cpu"), **change)
    with pytest.raises(KitError) as caught:
        run_measurements(options)
    assert says in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_a_missing_gpu_is_reported(tmp_path):
    import torch

    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    with pytest.raises(KitError, match=r"--device cuda cannot be measured: torch .* sees no GPU here"):
        run_measurements(MeasureOptions(str(tmp_path / "rows.jsonl"), device="cuda"))


@pytest.mark.slow
def test_the_packed_kit_needs_only_torch(tmp_path):
    kit, out = tmp_path / "kit.pyz", tmp_path / "rows.jsonl"
    assert pack_kit(str(kit)) == kit.stat().st_size < 200_000
    names = zipfile.ZipFile(kit).namelist()
    assert all(name in ("__main__.py", "leadline/__init__.py") or name.startswith("leadline/kit/") for name in names)
    bare = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    process = subprocess.Popen(
        [sys.executable, "-I", str(kit), "--out", str(out), "--device", "cpu", "--quick"],
        env={**bare, "OMP_NUM_THREADS": "1"}, cwd=tmp_path, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    wait_for(lambda: (out.exists() and b'"outcome": "ok"' in out.read_bytes()) or process.poll() is not None)
    process.send_signal(signal.SIGTERM)
    _, messages = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 130, messages
    assert "ok" in {row["outcome"] for row in read(out)[1]}


def test_the_packed_kit_contains_all_its_modules(tmp_path):
    kit = tmp_path / "kit.pyz"
    pack_kit(str(kit))
    program = (
        f"import sys; sys.path.insert(0, {str(kit)!r}); import leadline.kit.command, leadline.kit.worker; "
        "print(sorted({m.__file__.partition('.pyz')[1] for n, m in sys.modules.items() if n.startswith('leadline')}), "
        "'torch' in sys.modules)"
    )
    completed = subprocess.run([sys.executable, "-I", "-c", program], capture_output=True, text=True, check=True)
    assert completed.stdout.strip() == "['.pyz'] False"


def test_the_same_version_packs_to_the_same_bytes(tmp_path):
    pack_kit(str(tmp_path / "one.pyz"))
    pack_kit(str(tmp_path / "two.pyz"))
    assert (tmp_path / "one.pyz").read_bytes() == (tmp_path / "two.pyz").read_bytes()
    with pytest.raises(KitError, match="cannot be written"):
        pack_kit("/nowhere/kit.pyz")


def test_an_interrupted_run_tells_how_to_resume(tmp_path):
    out = tmp_path / "rows.jsonl"
    process = subprocess.Popen(command(out), env=ENVIRONMENT, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    wait_for(lambda: lines(out) >= 2)
    process.send_signal(signal.SIGTERM)
    _, messages = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 130
    assert messages.splitlines()[-1] == f"measure: interrupted; the same command goes on with {out}"
    assert read(out)[1]
