"""Predictions of a checkout, to the last bit: a fixed set of questions, asked through the command line.

``python benchmarks/predictions.py --checkout DIR --json FILE`` answers all questions with the code in ``DIR/src``.
``python benchmarks/predictions.py --compare A B`` prints how two such files differ, and exits with 1 if they do.

Each question of ``scripts/predictions/questions.txt`` is a ``leadline ... --json`` command in an empty home folder, so
that no file of the user takes part. JSON prints floats so that they read back exactly: two files are equal only if all
numbers are equal to the last bit. Sentences are not compared without ``--texts``, as they may be reworded.
The standard library suffices; questions that need torch, jax, onnx or scikit-learn are asked where these are installed.
"""

import argparse
import concurrent.futures
import importlib.util
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SCHEMA = "leadline.predictions/1"
INPUTS = Path(__file__).resolve().parent / "scripts" / "predictions"
TIMEOUT_S = 600
AT_ONCE = 20
"""Questions of one home that a worker takes at a time, where they do not share state."""
SHOWN = 200
SENTENCES = {"reasons", "notes", "trace_notes", "unknown", "why", "message", "sentence", "reason", "fix", "detail"}
"""Keys whose texts are sentences for people."""
NAMES = {"device", "system", "partition", "name"}
"""Keys whose texts are compared although they hold spaces."""
VOLATILE = {"fit_s", "seconds", "fitted_at", "trained_at", "created_at", "made_at", "date", "at", "now", "version"}
"""Keys whose values change from run to run, or with the release."""


@dataclass(frozen=True)
class Question:
    """A command whose JSON document is an answer.

    Attributes:
        name: Identifies it in the file of answers.
        home: Home folder of the command; trained and adapted models are kept there.
        needs: Modules without which it is not asked.
        measured: Keys that are measured while a job is traced, and so differ from run to run.
        words: Arguments of ``leadline``; ``@x`` is the file x of the inputs, ``PYTHON`` the interpreter.
    """

    name: str
    home: str
    needs: tuple[str, ...]
    measured: tuple[str, ...]
    words: tuple[str, ...]

    @property
    def ordered(self) -> bool:
        """Return whether the questions of this home need their order: later ones read what the first makes."""
        return self.home.startswith(("train", "adapt"))


def read_questions(pattern: str = "") -> list[Question]:
    """Read the questions whose name matches and whose modules are installed."""
    questions = []
    for line in (INPUTS / "questions.txt").read_text(encoding="utf-8").splitlines():
        if line.startswith("#"):
            continue
        name, home, needs, measured, words = (cell.strip() for cell in line.split("|", 4))
        question = Question(name, home, _listed(needs), _listed(measured), tuple(shlex.split(words)))
        if re.search(pattern, name) and all(importlib.util.find_spec(module) for module in question.needs):
            questions.append(question)
    return questions


def _listed(cell: str) -> tuple[str, ...]:
    return tuple(word for word in cell.split(",") if word)


# --- inputs ---


def write_inputs(folder: Path) -> None:
    """Write the files that the questions name."""
    shutil.copytree(INPUTS, folder, dirs_exist_ok=True)
    for name, config in json.loads((INPUTS / "configs.json").read_text(encoding="utf-8")).items():
        (folder / f"{name}.json").write_text(json.dumps(config), encoding="utf-8")
    (folder / "sacct.txt").write_text(accounting(), encoding="utf-8")
    (folder / "lengths.txt").write_text(sequence_lengths(), encoding="utf-8")
    if importlib.util.find_spec("onnx"):
        write_onnx(folder / "net.onnx")


def uniform_numbers(seed: int) -> Iterator[float]:
    """Yield numbers in [0, 1) by a linear congruence: the same ones for every version of Python."""
    state = seed
    while True:
        state = (1103515245 * state + 12345) % 2**31
        yield state / 2**31


def accounting() -> str:
    """Return sacct's output for 500 jobs in two partitions with different queues."""
    draw, lines, now = uniform_numbers(5), [], 1_700_000_000
    for number in range(500):
        submitted = now - 300 * (500 - number)
        partition = "cpu" if next(draw) < 0.6 else "cpu-exp"
        started = submitted + round(3600 + 3600 * next(draw) if partition == "cpu" else 60 * next(draw))
        ended = started + 900 + round(1800 * next(draw))
        state = "PENDING" if started > now else "RUNNING" if ended > now else "COMPLETED"
        times = [str(at) if at <= now else "Unknown" for at in (submitted, submitted, started, ended)]
        lines.append("\x1f".join([str(number), *times, state, "ada", "", partition, "", "1", "40", "cpu=40", "60",
                                  "job"]))  # fmt: skip
    return "\n".join(lines) + "\n"


def sequence_lengths() -> str:
    """Return the token counts of 300 samples, one a line."""
    draw = uniform_numbers(3)
    return "\n".join(str(16 + int(1200 * next(draw) ** 2)) for _ in range(300)) + "\n"


def write_onnx(path: Path) -> None:
    """Write a small convolutional classifier as an ONNX file."""
    from onnx import TensorProto, helper, save  # noqa: PLC0415 - not everyone has it

    def weight(name: str, *shape: int) -> Any:  # noqa: ANN401 - onnx is untyped
        size = 4
        for length in shape:
            size *= length
        return helper.make_tensor(name, TensorProto.FLOAT, shape, bytes(size), raw=True)

    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], kernel_shape=[3, 3], pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["c"], ["r"]),
        helper.make_node("Conv", ["r", "u"], ["d"], kernel_shape=[3, 3], strides=[2, 2]),
        helper.make_node("GlobalAveragePool", ["d"], ["p"]),
        helper.make_node("Flatten", ["p"], ["f"]),
        helper.make_node("Gemm", ["f", "v", "b"], ["y"], transB=1),
    ]
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 3, 64, 64])]
    outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", 10])]
    weights = [weight("w", 64, 3, 3, 3), weight("u", 128, 64, 3, 3), weight("v", 10, 128), weight("b", 10)]
    save(helper.make_model(helper.make_graph(nodes, "net", inputs, outputs, weights)), path)


# --- answers ---


def answer_questions(checkout: Path, questions: Sequence[Question], *, python: str, jobs: int) -> dict[str, Any]:
    """Ask all questions, ``jobs`` at a time; return the document of answers."""
    answers: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(prefix="predictions-") as temporary:
        folder = Path(temporary).resolve()
        write_inputs(folder)

        def answer_group(group: Sequence[Question]) -> None:
            for question in group:
                answers[question.name] = answer(question, checkout, folder, python)
                sys.stderr.write(f"[{len(answers)}/{len(questions)}] {question.name}\n")

        with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
            for future in [pool.submit(answer_group, group) for group in grouped(questions)]:
                future.result()
    return {
        "schema": SCHEMA,
        "commit": commit_of(checkout),
        "answers": {question.name: answers[question.name] for question in questions},
    }


def grouped(questions: Sequence[Question]) -> list[list[Question]]:
    """Return questions by home, in parts where their order does not matter."""
    homes: dict[str, list[Question]] = {}
    for question in questions:
        homes.setdefault(question.home, []).append(question)
    groups = []
    for group in homes.values():
        size = len(group) if group[0].ordered else AT_ONCE
        groups += [group[start : start + size] for start in range(0, len(group), size)]
    return groups


def answer(question: Question, checkout: Path, folder: Path, python: str) -> dict[str, Any]:
    """Ask one question; return its exit code, its seconds and its document without volatile fields."""
    home = folder / "homes" / question.home.replace(" ", "-")
    home.mkdir(parents=True, exist_ok=True)
    words = [re.sub(r"(^|=)@", lambda match: f"{match[1]}{folder}/", word) for word in question.words]
    words = [sys.executable if word == "PYTHON" else word for word in words]
    end = words.index("--") if "--" in words else len(words)
    began = time.monotonic()
    process = subprocess.run(  # noqa: S603 - one of the questions
        [python, "-m", "leadline", *words[:end], "--json", *words[end:]],
        cwd=folder, env=environment(checkout, home), capture_output=True, text=True, timeout=TIMEOUT_S, check=False,
        stdin=subprocess.DEVNULL,
    )  # fmt: skip
    took_s = round(time.monotonic() - began, 2)
    try:
        document = json.loads(process.stdout)
    except ValueError:
        document = {"text": process.stdout, "error": process.stderr}
    places = ((str(folder), "WORK"), (str(checkout), "CHECKOUT"))
    kept = steady(document, places, VOLATILE.union(question.measured))
    return {"exit": process.returncode, "took_s": took_s, "answer": kept}


def environment(checkout: Path, home: Path) -> dict[str, str]:
    """Return the environment of a command: the checkout's code, an empty home and fixed settings."""
    kept = {name: os.environ[name] for name in ("PATH", "LANG", "LD_LIBRARY_PATH", "VIRTUAL_ENV") if name in os.environ}
    folders = {f"XDG_{name}_HOME": str(home / name.lower()) for name in ("CONFIG", "DATA", "CACHE", "STATE")}
    # one thread, as sums over several are added in another order from run to run
    threads = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    return {
        **kept, **folders, **threads, "HOME": str(home), "USER": "ada", "PYTHONPATH": str(checkout / "src"),
        "PYTHONHASHSEED": "0", "COLUMNS": "200", "NO_COLOR": "1", "TZ": "UTC", "PYTHONDONTWRITEBYTECODE": "1",
    }  # fmt: skip


def steady(node: Any, places: Sequence[tuple[str, str]], drop: Collection[str]) -> Any:  # noqa: ANN401 - JSON
    """Return a document without the keys ``drop``, its folders replaced by fixed words."""
    if isinstance(node, dict):
        return {
            steady(key, places, drop): steady(child, places, drop) for key, child in node.items() if key not in drop
        }
    if isinstance(node, list):
        return [steady(child, places, drop) for child in node]
    if isinstance(node, str):
        for folder, word in places:
            node = node.replace(folder, word)
    return node


def commit_of(checkout: Path) -> str | None:
    """Return the commit of a checkout; None outside a repository."""
    command = ["git", "-C", str(checkout), "rev-parse", "HEAD"]
    process = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603 - fixed words
    return process.stdout.strip() or None


# --- comparison ---


def differences(first: Any, second: Any, where: str, *, texts: bool) -> list[str]:  # noqa: ANN401 - JSON
    """Return where two documents differ: in keys, numbers and names; in sentences only with ``texts``."""
    if isinstance(first, dict) and isinstance(second, dict):
        return _key_differences(first, second, where, texts=texts)
    if isinstance(first, list) and isinstance(second, list):
        if not texts and all(isinstance(child, str) and " " in child for child in [*first, *second]):
            return []
        if len(first) != len(second):
            return [f"{where}: {len(first)} elements against {len(second)}"]
        pairs = enumerate(zip(first, second, strict=True))
        return [line for i, (a, b) in pairs for line in differences(a, b, f"{where}[{i}]", texts=texts)]
    if isinstance(first, str) and isinstance(second, str):
        prose = " " in first and " " in second and where.rpartition(".")[2] not in NAMES
        if prose and not texts:
            return []
    same = type(first) is type(second) and (first == second or (first != first and second != second))  # noqa: PLR0124 - NaN
    return [] if same else [f"{where}: {first!r} against {second!r}"]


def _key_differences(first: dict[str, Any], second: dict[str, Any], where: str, *, texts: bool) -> list[str]:
    lines = []
    for key in [*first, *(key for key in second if key not in first)]:
        place = f"{where}.{key}"
        if key not in first or key not in second:
            lines.append(f"{place}: only in {'A' if key in first else 'B'}")
        elif texts or key not in SENTENCES:
            lines += differences(first[key], second[key], place, texts=texts)
        elif isinstance(first[key], dict) and isinstance(second[key], dict) and set(first[key]) != set(second[key]):
            lines.append(f"{place}: keys {sorted(first[key])} against {sorted(second[key])}")
    return lines


def compare(first: Path, second: Path, *, texts: bool) -> int:
    """Print how two files of answers differ; return 1 if they do, else 0."""
    a, b = (json.loads(path.read_text(encoding="utf-8"))["answers"] for path in (first, second))
    lines = []
    for name in [*a, *(name for name in b if name not in a)]:
        if name not in a or name not in b:
            lines.append(f"{name}: only in {'A' if name in a else 'B'}")
            continue
        if a[name]["exit"] != b[name]["exit"]:
            lines.append(f"{name}: exit {a[name]['exit']} against {b[name]['exit']}")
        lines += differences(a[name]["answer"], b[name]["answer"], name, texts=texts)
    more = [f"... and {len(lines) - SHOWN} more"] if len(lines) > SHOWN else []
    total = (
        f"{len(a)} answers in A, {len(b)} in B: {len(lines)} differences" if lines else f"{len(a)} answers are equal"
    )
    sys.stdout.write("\n".join([*lines[:SHOWN], *more, total]) + "\n")
    return 1 if lines else 0


def main() -> int:
    """Answer the questions, or compare two files of answers."""
    parser = argparse.ArgumentParser(description="Compare the predictions of two commits to the last bit.")
    parser.add_argument("--checkout", type=Path, help="a working tree with src/leadline")
    parser.add_argument("--json", type=Path, help="where the answers are written")
    parser.add_argument("--python", default=sys.executable, help="interpreter that runs the checkout's code")
    parser.add_argument("--jobs", type=int, default=2, help="commands at a time")
    parser.add_argument("--match", default="", help="ask only questions whose names match this pattern")
    parser.add_argument("--compare", nargs=2, type=Path, metavar=("A", "B"), help="print how two files differ")
    parser.add_argument("--texts", action="store_true", help="compare sentences too")
    options = parser.parse_args()
    if options.compare:
        return compare(*options.compare, texts=options.texts)
    if not options.checkout or not options.json:
        parser.error("give --checkout and --json, or --compare")
    questions = read_questions(options.match)
    document = answer_questions(options.checkout.resolve(), questions, python=options.python, jobs=options.jobs)
    options.json.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    failed = [name for name, reply in document["answers"].items() if reply["exit"]]
    if failed:
        sys.stderr.write(f"{len(failed)} questions end with another exit code than 0: {', '.join(failed)}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
