"""``leadline submit`` and ``leadline history`` as a user types them."""

import json
import os
import sys

import pytest

from leadline.interfaces.cli.main import main


@pytest.fixture(autouse=True)
def own_folder(monkeypatch, tmp_path):
    monkeypatch.setenv("LEADLINE_DATA_DIR", str(tmp_path / "data"))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(path for path in sys.path if path))


def test_a_dry_run_prints_the_script_alone_and_writes_nothing(capsys, tmp_path):
    words = [
        "submit",
        "--on",
        "slurm:batch",
        "--time",
        "2h",
        "--memory",
        "16G",
        "--dry-run",
        "--",
        "python",
        "train.py",
    ]
    assert main(words) == 0
    script = capsys.readouterr().out
    assert script.startswith("#!/bin/bash\n#SBATCH --job-name=train\n")
    assert "#SBATCH --mem=16384M\n#SBATCH --time=02:00:00\n" in script
    assert script.endswith("exec python train.py\n")
    assert not (tmp_path / "data").exists()


def test_a_run_here_is_shown_and_listed_and_exported(capfd):
    assert main(["submit", "-y", "--json", "--name", "hello", "--", sys.executable, "-c", "print('from the job')"]) == 0
    printed = capfd.readouterr()
    document = json.loads(printed.out)
    assert document["schema"] == "leadline.run/1"
    assert document["state"] == "COMPLETED"
    assert "from the job" in printed.err
    assert main(["history", "show", document["id"], "--json"]) == 0
    assert json.loads(capfd.readouterr().out) == document
    assert main(["history", "show"]) == 0
    assert document["id"] in capfd.readouterr().out
    assert main(["history", "list", "--json"]) == 0
    assert [run["id"] for run in json.loads(capfd.readouterr().out)["runs"]] == [document["id"]]
    assert main(["history", "export"]) == 0
    assert "hello" in capfd.readouterr().out


def test_a_job_that_fails_ends_the_command_with_its_own_code_and_stays_in_the_history(capfd):
    assert main(["submit", "-y", "--", sys.executable, "-c", "import sys; sys.exit(3)"]) == 5
    printed = capfd.readouterr()
    assert "FAILED (exit code 3)" in printed.err
    assert main(["history", "show"]) == 0
    assert "FAILED" in capfd.readouterr().out


def test_a_run_that_was_cut_off_is_marked(capfd):
    assert main(["submit", "-y", "--time", "1s", "--", "sleep", "60"]) == 5
    assert "≥" in capfd.readouterr().out


@pytest.mark.parametrize(
    ("words", "code", "reason"),
    [
        (["submit", "-y"], 2, "there is no command to run"),
        (["submit", "--", "true"], 2, "add -y"),
        (["submit", "-y", "--time", "soon", "--", "true"], 2, "'soon' is not a duration"),
        (["submit", "--on", "Nowhere:gpu", "--dry-run", "--", "true"], 2, "unknown system 'Nowhere'"),
        (["submit", "--on", "slurm:gpu", "-y", "--", "true"], 2, "--dry-run prints the script"),
        (["history", "show", "nothing"], 2, "unknown run 'nothing': the history is empty"),
        (["history", "export", "--format", "xml"], 2, "write csv or json"),
    ],
)
def test_bad_input_is_one_sentence_and_nothing_written(words, code, reason, capsys, tmp_path):
    assert code == main(words)
    printed = capsys.readouterr()
    assert printed.out == ""
    assert reason in printed.err
    assert printed.err.count("\n") == 1
    assert not (tmp_path / "data").exists()
