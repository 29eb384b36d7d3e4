"""``leadline submit`` and ``leadline history`` as a user types them."""

import json
import os
import sys

import pytest

from leadline.interfaces.cli.main import main


@pytest.fixture(autouse=True)
def own_folder(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
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
    printed = capsys.readouterr()
    script = printed.out
    assert "note: submitted with sbatch --parsable --no-requeue --job-name=train-" in printed.err
    assert script.startswith("#!/bin/bash\n#SBATCH --job-name=train\n")
    assert "#SBATCH --mem=16384M\n#SBATCH --time=02:00:00\n" in script
    assert "; exec python train.py) & child=$!\n" in script
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
        (["submit", "-y"], 2, "no command given"),
        (["submit", "--", "true"], 2, "add -y"),
        (["submit", "-y", "--time", "soon", "--", "true"], 2, "'soon' is not a duration"),
        (["submit", "--on", "Nowhere:gpu", "--dry-run", "--", "true"], 2, "unknown system 'Nowhere'"),
        (["submit", "--array", "0-3", "-y", "--", "true"], 2, "add --detach, or name a cluster"),
        (["submit", "--dry-run", "--array", "9" * 5000, "--", "true"], 2, "is not a list of array indices"),
        (
            ["submit", "--on", "local", "--detach", "-y", "--array", "3-", "--", "true"],
            2,
            "write 0-99, 1,5,7 or 0-100:10",
        ),
        (["history", "show", "nothing"], 2, "unknown run 'nothing': the history is empty"),
        (["history", "export", "--format", "xml"], 2, "must be csv or json"),
    ],
)
def test_bad_input_is_one_sentence_and_nothing_written(words, code, reason, capsys, tmp_path):
    assert code == main(words)
    printed = capsys.readouterr()
    assert printed.out == ""
    assert reason in printed.err
    assert printed.err.count("\n") == 1
    assert not (tmp_path / "data").exists()


def test_an_unreachable_cluster_is_refused_with_the_fix(monkeypatch, tmp_path, capsys):
    monkeypatch.setenv("PATH", "/nonexistent")
    assert main(["submit", "--on", "slurm:gpu", "-y", "--", "true"]) == 4
    said = capsys.readouterr().err
    assert "no sbatch" in said
    assert "--dry-run prints the script" in said
    assert not (tmp_path / "data").exists()


def test_a_dry_run_prints_a_script_per_target_and_the_policy(capsys, tmp_path):
    words = [
        "--on",
        "slurm:short",
        "--on",
        "slurm:long",
        "--copies",
        "2",
        "--array",
        "0-3",
        "--resumes",
        "--time",
        "1h",
    ]
    assert main(["submit", *words, "--dry-run", "--", "python", "train.py"]) == 0
    printed = capsys.readouterr()
    assert printed.out.count("#!/bin/bash") == 2
    assert "array 'train' of 4 at slurm:short, else slurm:long (2 at once): 1 node, at most 1h 00m" in printed.err
    assert "resumes from its checkpoint" in printed.err
    assert main(["submit", *words, "--dry-run", "--json", "--", "python", "train.py"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert [other["place"] for other in document["others"]] == ["slurm:long"]
    assert document["policy"]["copies"] == 2
    assert not (tmp_path / "data").exists()


def test_a_submission_is_printed_as_text_or_one_document(capsys):
    assert main(["submit", "--on", "local", "--detach", "-y", "--json", "--", "true"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["schema"] == "leadline.submitted/1"
    assert document["jobs"][0]["scheduler_id"] == "1"
    assert main(["watch"]) == 0
