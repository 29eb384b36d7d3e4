"""``leadline calibrate`` as a user types it: refused at once, or measured, kept and used by what follows."""

import json
import os
import subprocess
import sys

import pytest

from leadline.app.composition import toolbox
from leadline.core.hardware import Calibration, Device, DeviceKind
from leadline.interfaces.cli import calibrate
from leadline.interfaces.cli.main import main


@pytest.fixture(scope="module")
def calibrated(tmp_path_factory):
    """Calibrate this CPU as briefly as it can be; return the data folder and what was printed."""
    pytest.importorskip("torch")
    folder = tmp_path_factory.mktemp("calibrated")
    done = subprocess.run(
        [sys.executable, "-m", "leadline", "calibrate", "--budget", "10", "--json"],
        env={**os.environ, "LEADLINE_DATA_DIR": str(folder), "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return folder, done


@pytest.fixture
def home(calibrated, monkeypatch):
    monkeypatch.setenv("LEADLINE_DATA_DIR", str(calibrated[0]))
    toolbox.cache_clear()
    yield calibrated[0]
    toolbox.cache_clear()


@pytest.mark.slow
def test_a_sweep_is_one_document_on_stdout_and_one_record_in_the_catalog(calibrated):
    folder, done = calibrated
    document = json.loads(done.stdout)
    assert document["schema"] == "leadline.device/1"
    assert document["kind"] == "cpu"
    assert document["calibration"]["timings"]
    assert f"calibrated {document['name']}; saved to your catalog" in done.stderr
    (record,) = folder.glob("catalog/devices/*")
    assert document["name"] == json.loads(record.read_text())["name"]


@pytest.mark.slow
def test_the_calibrated_device_leads_the_list_and_answers_for_this_machine(home, capsys, tmp_path):
    assert main(["devices", "list"]) == 0
    header, first, *_ = capsys.readouterr().out.splitlines()
    assert header.startswith("device")
    assert "measured here" in first
    config = tmp_path / "config.json"
    config.write_text('{"model_type": "gpt2", "n_embd": 64, "n_layer": 2, "n_head": 4, "vocab_size": 1000}')
    assert main(["estimate", str(config), "--on", "local", "--batch", "2", "--seq", "64", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["basis"]["tier"] == "calibrated"


@pytest.mark.slow
def test_a_calibrated_device_is_shown_with_its_date_and_software(home, capsys):
    (record,) = home.glob("catalog/devices/*")
    assert main(["devices", "show", json.loads(record.read_text())["name"]]) == 0
    assert "torch" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("name", "value", "words", "written"),
    [
        ("launch_s", 9e-6, "launch", "9 µs"),
        ("framework_bytes", 220 * 2**20, "framework", "220 MiB"),
        ("copy_bytes_per_s", 1.163e10, "copy", "11.6 GB/s"),
        ("busy_share", 0.02, "busy share", "2%"),
        ("threads", 2.0, "threads", "2"),
        ("fresh_s_per_byte", 4.4e-10, "fresh s per byte", "4.4e-10"),
    ],
)
def test_a_figure_is_written_with_the_unit_that_its_name_ends_in(capsys, name, value, words, written):
    sweep = Calibration("2026-11-27T10:00:00+00:00", "torch", 2, figures={name: value})
    calibrate._print(Device("a CPU", "AMD", DeviceKind.CPU, calibration=sweep))
    assert capsys.readouterr().out.splitlines()[-1] == f"  {words:<22} {written}"


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--device", "tpu"], "--device tpu is not known: give cpu or cuda"),
        (["--budget", "5"], "--budget is 5, but it must be at least 10 seconds"),
        (["--budget", "nan"], "--budget is nan, but it must be at least 10 seconds"),
        (["--budget", "1e30"], "--budget is 1e+30, but it must be at most 3600 seconds"),
        (["--budget", "long"], "invalid value for '--budget'"),
        (["cuda"], "got unexpected extra argument"),
    ],
)
def test_an_impossible_measurement_is_refused_at_once(words, says, capsys, tmp_path, monkeypatch):
    pytest.importorskip("torch")
    monkeypatch.setenv("LEADLINE_DATA_DIR", str(tmp_path / "data"))
    assert main(["calibrate", *words]) == 2
    printed = capsys.readouterr()
    assert (printed.out, printed.err.count("\n")) == ("", 1)
    assert says in printed.err
    assert not (tmp_path / "data").exists()
