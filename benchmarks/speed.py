"""``bench speed``: the time of start-up and of a 7B configuration, with the alternatives in the same run."""

import json
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from benchmarks.results import BenchmarkResult, BenchmarkRow, at_least, at_most
from leadline.app.composition import process_runner
from leadline.core.errors import LeadlineError
from leadline.interfaces.cli.commands import COMMANDS

LLAMA_7B = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_act": "silu",
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "max_position_embeddings": 4096,
    "num_attention_heads": 32,
    "num_hidden_layers": 32,
    "num_key_value_heads": 32,
    "rms_norm_eps": 1e-05,
    "tie_word_embeddings": False,
    "vocab_size": 32000,
}
"""The published configuration of Llama-2-7B."""

ACCELERATE_SCRIPT = """
import sys
from accelerate import init_empty_weights
from accelerate.utils import calculate_maximum_sizes
from transformers import AutoConfig, AutoModelForCausalLM
config = AutoConfig.from_pretrained(sys.argv[1])
with init_empty_weights():
    model = AutoModelForCausalLM.from_config(config)
print(calculate_maximum_sizes(model))
"""
"""The work of ``accelerate estimate-memory`` after it has fetched the configuration."""
LLAMA_TARGET = 8.0
ENVIRONMENT = {"PYTHONDONTWRITEBYTECODE": ""}
"""An installed Leadline is compiled once, not at every start."""


def run(*, quick: bool = False) -> BenchmarkResult:
    """Measure start-up and the 7B configuration: medians of interleaved whole processes."""
    repeats = 3 if quick else 7
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder) / "config.json"
        config.write_text(json.dumps(LLAMA_7B))
        rows = [*_startup_rows(repeats * 3), *_llama_rows(config, repeats)]
    return BenchmarkResult("speed", tuple(rows))


def _startup_rows(repeats: int) -> list[BenchmarkRow]:
    """Return the start-up of commands that only show something, ÷ bare Python."""
    how = "medians of whole processes, interleaved; baseline in seconds"
    helps = [("--help",), *((verb, "--help") for verb in COMMANDS)]
    shown = [("jobs",), ("systems", "list")]
    commands = [[sys.executable, "-m", "leadline", *words] for words in (*helps, *shown)]
    bare_s, *seconds = _interleaved([[sys.executable, "-c", "pass"], *commands], repeats)
    slowest = max(range(1, len(helps)), key=seconds.__getitem__)
    rows = [
        ("leadline --help", seconds[0], 8.0, how),
        ("leadline COMMAND --help, the slowest", seconds[slowest], 12.0, f"{helps[slowest][0]}; {how}"),
        *(
            (f"leadline {' '.join(words)}", second, 20.0, how)
            for words, second in zip(shown, seconds[-2:], strict=True)
        ),
    ]
    return [
        at_most(f"{name} ÷ bare Python", second / bare_s, most, "×", baseline=bare_s, n=repeats, how=text)
        for name, second, most, text in rows
    ]


def _llama_rows(config: Path, repeats: int) -> list[BenchmarkRow]:
    leadline = [
        sys.executable, "-m", "leadline", "estimate", str(config), "--steps", "1", "--on", "A100 SXM4 80GB", "--json",
    ]  # fmt: skip
    accelerate = [sys.executable, "-c", ACCELERATE_SCRIPT, str(config.parent)]
    if not _runs(accelerate):
        elapsed_s = _interleaved([leadline], repeats)[0]
        reason = "accelerate could not read the configuration here (is it installed?), so the ratio is not measured"
        return [
            BenchmarkRow("Llama-7B config, whole process", elapsed_s, "s", n=repeats, how="median"),
            BenchmarkRow("accelerate's estimate ÷ ours", None, "×", target=LLAMA_TARGET, how=reason),
        ]
    elapsed_s, accelerate_s = _interleaved([leadline, accelerate], repeats)
    return [
        BenchmarkRow("Llama-7B config, whole process", elapsed_s, "s", baseline=accelerate_s, n=repeats, how="median"),
        at_least(
            "accelerate's estimate ÷ ours",
            accelerate_s / elapsed_s,
            LLAMA_TARGET,
            "×",
            baseline=accelerate_s,
            n=repeats,
            how="whole processes on the same config.json, interleaved; ours gives time and memory, theirs memory",
        ),
    ]


def _runs(argv: Sequence[str]) -> bool:
    return shutil.which(argv[0]) is not None and process_runner()(argv, env=ENVIRONMENT, timeout_s=120).returncode == 0


def _interleaved(commands: Sequence[Sequence[str]], repeats: int) -> list[float]:
    """Return the median seconds of each command, run in turn after a warm-up."""
    samples: list[list[float]] = [[] for _ in commands]
    for round_number in range(repeats + 1):
        for argv, times in zip(commands, samples, strict=True):
            elapsed_s = _timed(lambda argv=argv: process_runner()(argv, env=ENVIRONMENT, timeout_s=300))  # type: ignore[misc]
            if round_number:
                times.append(elapsed_s)
    return [statistics.median(times) for times in samples]


def _timed(action: Callable[[], object]) -> float:
    begun = time.perf_counter()
    ended = action()
    elapsed_s = time.perf_counter() - begun
    if getattr(ended, "returncode", 0) != 0:
        raise LeadlineError(f"a measured command failed: {getattr(ended, 'stderr', '').strip()[-500:]}")
    return elapsed_s
