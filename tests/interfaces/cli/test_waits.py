"""The time in the queue on the command line: ``leadline recommend --waits SYSTEM=FILE``."""

import json
import random

import pytest

from leadline.history.sacct import DELIMITER
from leadline.interfaces.cli.main import main

LLAMA = {
    "model_type": "llama", "hidden_size": 512, "intermediate_size": 1376, "num_attention_heads": 8,
    "num_hidden_layers": 4, "vocab_size": 32000, "max_position_embeddings": 2048,
}  # fmt: skip
HOUR = 3600.0


@pytest.fixture(scope="module")
def sacct(tmp_path_factory):
    """Return the accounting of a site where the partition cpu lets jobs wait one to two hours, and cpu-exp none."""
    draw, lines, now = random.Random(5), [], 1_700_000_000  # noqa: S311 - a made-up load
    for number in range(400):
        submitted = now - 300 * (400 - number)
        partition = draw.choice(["cpu", "cpu-exp"])
        started = submitted + round(draw.uniform(HOUR, 2 * HOUR) if partition == "cpu" else draw.uniform(0, 5))
        ended = started + 1800
        moments = (submitted, submitted, started, ended)
        state = "PENDING" if started > now else "RUNNING" if ended > now else "COMPLETED"
        shown = [str(at) if at <= now else "Unknown" for at in moments]
        lines.append(DELIMITER.join([str(number), *shown, state, "ada", "", partition, "", "1", "40",
                                     "cpu=40", "60", "job"]))  # fmt: skip
    path = tmp_path_factory.mktemp("site") / "sacct.txt"
    path.write_text("\n".join(lines) + "\n")
    return str(path)


@pytest.fixture
def config(tmp_path):
    path = tmp_path / "config.json"
    path.write_text(json.dumps(LLAMA))
    return str(path)


def run(capsys, *arguments):
    code = main(list(arguments))
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def by_partition(options):
    return {option["partition"]: option for option in options}


def test_waits_are_shown_next_to_the_time_if_the_accounting_has_them(capsys, config, sacct):
    words = ("recommend", config, "--steps", "1000", "--on", "Pitzer", "--waits", f"pitzer={sacct}", "--json")
    code, out, _ = run(capsys, *words)
    found = by_partition(json.loads(out)["options"])
    assert code == 0
    assert HOUR <= found["cpu"]["wait_s"]["point"] <= 2 * HOUR
    assert found["cpu-exp"]["wait_s"]["point"] <= 60
    run_s, result_s = found["cpu"]["estimate"]["elapsed_s"], found["cpu"]["result_s"]
    assert found["cpu"]["wait_s"]["low"] + run_s["low"] <= result_s["point"] <= result_s["high"]
    assert found["largemem"]["wait_s"] is None
    assert found["largemem"]["result_s"] is None


def test_a_deadline_counts_the_wait(capsys, config, sacct):
    words = (
        "recommend",
        config,
        "--steps",
        "1000",
        "--on",
        "Pitzer:cpu",
        "--on",
        "Pitzer:cpu-exp",
        "--deadline",
        "55m",
    )
    _, without, _ = run(capsys, *words, "--json")
    code, out, err = run(capsys, *words, "--waits", f"Pitzer={sacct}", "--all")
    assert {"cpu", "cpu-exp"} == set(by_partition(json.loads(without)["options"]))
    assert code == 0
    assert "Request Pitzer:cpu-exp" in out
    assert "rejected Pitzer:cpu (" in err
    assert "deadline: waits and runs for up to" in err
    assert "waits at Pitzer are those of its queue at 2023-11-14" in err


def test_the_table_shows_waits_only_on_request(capsys, config, sacct):
    words = ("recommend", config, "--steps", "1000", "--on", "Pitzer")
    _, out, _ = run(capsys, *words)
    assert "result after" not in out
    _, out, _ = run(capsys, *words, "--waits", f"Pitzer={sacct}")
    assert "result after" in out
    assert any("unknown" in line for line in out.splitlines() if "largemem" in line)


@pytest.mark.parametrize(
    ("shown", "says"),
    [("Pitzer=", "write SYSTEM=FILE"), ("Pizter=x", "Pitzer"), ("Pitzer=/nowhere/sacct.txt", "check the path")],
)
def test_an_accounting_that_cannot_be_read_ends_in_one_sentence(capsys, config, shown, says):
    code, out, err = run(capsys, "recommend", config, "--steps", "10", "--waits", shown)
    assert (code, out) == (2, "")
    assert says in err
    assert len(err.strip().splitlines()) == 1
