"""``leadline chat`` with scripted replies of Ollama, and without a model."""

import io
import os
import pty
import subprocess
import sys

import pytest

import leadline
from leadline.interfaces.cli.main import main
from tests.interfaces.chat.conftest import call


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    for kind in ("DATA", "CONFIG", "CACHE", "STATE"):
        monkeypatch.setenv(f"XDG_{kind}_HOME", str(tmp_path / kind.lower()))
    monkeypatch.setenv("OLLAMA_HOST", "http://127.0.0.1:9")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_model_answers_with_the_output_of_the_command_and_its_words(ollama, capsys):
    ollama.says([call("devices", {"name": "T4"})], ["A T4 has ", "16 GiB."])
    assert main(["chat", "--model", "m", "--host", ollama.host, "how much memory has a T4?"]) == 0
    shown = capsys.readouterr()
    assert shown.err == f"answers come from m on {ollama.host}\n"
    assert shown.out.startswith("$ leadline devices show T4\n")
    assert shown.out.endswith("A T4 has 16 GiB.\n")


def test_without_a_server_a_grammar_answers_and_says_so(capsys):
    assert main(["chat", "how much memory has a T4?"]) == 0
    shown = capsys.readouterr()
    assert shown.err.startswith("no language model: no Ollama answers at http://127.0.0.1:9: start it")
    assert shown.out.startswith("$ leadline devices show T4\n")


@pytest.mark.parametrize(
    ("options", "why"),
    [(["--model", "m"], "no Ollama answers"), (["--host", "http://127.0.0.1:9"], "no Ollama answers"),
     (["--host", "http://[::1"], "is no address of Ollama")],
)  # fmt: skip
def test_a_model_or_server_that_was_named_must_answer(capsys, options, why):
    assert main(["chat", *options, "T4?"]) != 0
    assert why in capsys.readouterr().err


def test_each_answer_is_saved_at_once_after_what_the_file_has(folder, capsys, monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.StringIO("how much memory has a T4?\n\nand an A40?\n"))
    assert main(["chat", "--no-model", "--save", "new/asked.md"]) == 0
    saved = (folder / "new" / "asked.md").read_text()
    assert [line for line in saved.splitlines() if line.startswith("## ")] == [
        "## how much memory has a T4?", "## and an A40?",
    ]  # fmt: skip
    assert "leadline devices show A40" in saved
    assert main(["chat", "--no-model", "--save", "new/asked.md", "which systems do you know?"]) == 0
    assert (folder / "new" / "asked.md").read_text().startswith(f"{saved}## which systems do you know?\n")


def test_a_file_that_is_no_text_is_left_alone_and_named(folder, capsys):
    (folder / "asked.md").write_bytes(b"\xff\xfe")
    assert main(["chat", "--no-model", "--save", "asked.md", "which systems do you know?"]) != 0
    assert "asked.md" in capsys.readouterr().err
    assert (folder / "asked.md").read_bytes() == b"\xff\xfe"


def test_without_a_terminal_nobody_can_agree_and_nothing_is_submitted(folder, capsys, monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.StringIO("y\n"))
    (folder / "train.py").write_text("open('ran.txt', 'w')")
    assert main(["chat", "--no-model", "submit python train.py on local"]) == 0
    assert "You did not agree, so nothing was done: leadline submit" in capsys.readouterr().out
    assert not (folder / "ran.txt").exists()


@pytest.mark.parametrize(("answer", "agreed"), [("n", False), ("y", True)])
def test_at_a_terminal_the_user_sees_the_command_and_decides(folder, ollama, answer, agreed):
    ollama.says([call("submit", {"command": ["touch", "ran\x1b[2K.txt"], "name": "a"})], ["Done."])
    controller, terminal = pty.openpty()
    words = [sys.executable, "-P", "-m", "leadline", "chat", "--host", ollama.host, "--model", "m", "submit", "it"]
    with subprocess.Popen(words, stdin=terminal, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        os.write(controller, f"{answer}\n".encode())
        output, errors = process.communicate(timeout=120)
    os.close(controller)
    os.close(terminal)
    assert r"leadline submit --detach --name a -- touch 'ran\x1b[2K.txt'" in errors
    assert ("You did not agree" in output) is not agreed
    for job in leadline.jobs(all_jobs=True):
        job.wait(timeout_s=60)
    assert (folder / "ran\x1b[2K.txt").exists() is agreed
