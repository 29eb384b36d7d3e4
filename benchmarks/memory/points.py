"""The points of ``bench memory``: models of the kit in training and inference, at sizes with steps of a second.

``python -m benchmarks.memory.points OUT.json`` measures each in a fresh process and writes its peaks.
"""

import json
import platform
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.provenance import cpu_model
from leadline.core.documents import to_json
from leadline.core.errors import JobFailed
from leadline.core.workload import InputShape, ModelKind, ModelSource, Optimizer, Phase, Precision, Recompute, Workload
from leadline.execution.processes import run_process
from leadline.kit.specs import SPECS

OPTIMIZERS = (
    Optimizer.ADAMW, Optimizer.SGD, Optimizer.ADAM, Optimizer.MOMENTUM, Optimizer.RMSPROP, Optimizer.ADAGRAD,
)  # fmt: skip

MODELS: tuple[tuple[str, int, int], ...] = (
    ("resnet18", 64, 32), ("resnet50", 96, 8), ("vgg11", 64, 16), ("mobilenet-1.0", 96, 16), ("convnext-t", 96, 4),
    ("unet-32", 64, 8), ("vit-s", 224, 2), ("swin-t", 224, 1),
    ("swin-mini", 32, 256), ("mlp-4x2048", 512, 512), ("mlp-8x4096", 1024, 64),
    ("lstm-2x512", 64, 8), ("lstm-mini", 32, 512), ("gpt-6x384", 128, 2), ("gpt-mini", 64, 64),
    ("bert-6x512", 128, 2), ("bert-mini", 64, 96), ("moe-6x512", 64, 2),
    ("transformers:gpt2", 64, 1), ("transformers:bert-base", 64, 1), ("transformers:llama-mini", 64, 1),
    ("transformers:t5-small", 64, 2),
)  # fmt: skip
"""Model of the kit, size of an input, batch."""

BUILDER = """\
from benchmarks.memory.models import with_loss


def model():
    return with_loss({model!r}, {size})
"""


@dataclass(frozen=True, slots=True)
class MemoryPoint:
    """One job; ``optimizer`` is None in inference."""

    model: str
    size: int
    batch: int
    phase: Phase
    precision: Precision
    optimizer: Optimizer | None = None
    accumulation: int = 1
    checkpointing: bool = False

    @property
    def family(self) -> str:
        """Return the kit's family of the model, or the name of a model of another package."""
        spec = SPECS[self.model]
        return self.model.partition(":")[2].partition("-")[0] if spec.package else spec.family

    @property
    def key(self) -> str:
        """Return a text that identifies the point."""
        marks = [f"accumulate {self.accumulation}"] if self.accumulation > 1 else []
        marks += ["checkpointing"] if self.checkpointing else []
        rule = [self.optimizer.value] if self.optimizer else []
        return " ".join([f"{self.model}-{self.size} b{self.batch}", self.phase, self.precision, *rule, *marks])

    @property
    def input(self) -> InputShape:
        """Return shape and dtype of one batch."""
        kind = SPECS[self.model].kind
        sizes = {"image": (3, self.size, self.size)}.get(kind, (self.size,))
        return InputShape((self.batch, *sizes), "int64" if kind == "tokens" else "float32")

    def request(self) -> dict[str, object]:
        """Return the document that the measuring scripts read."""
        return {
            "key": self.key, "model": self.model, "size": self.size, "phase": self.phase.value,
            "precision": self.precision.value, "optimizer": self.optimizer.value if self.optimizer else "",
            "accumulation": self.accumulation, "checkpointing": self.checkpointing, "shape": self.input.shape,
            "dtype": self.input.dtype,
        }  # fmt: skip

    def workload(self, folder: Path) -> Workload:
        """Return the point as a workload; write a file that builds the model into ``folder``."""
        name = f"{self.model}-{self.size}".replace(":", "-").replace(".", "-")
        file = folder / f"{name}.py"
        if not file.exists():
            file.write_text(BUILDER.format(model=self.model, size=self.size), encoding="utf-8")
        return Workload(
            ModelSource(ModelKind.FUNCTION, f"{file}:model"),
            phase=self.phase,
            batch=self.batch,
            inputs=(self.input,),
            precision=self.precision,
            optimizer=self.optimizer,
            accumulation=self.accumulation,
            recompute=Recompute.FULL if self.checkpointing else Recompute.NONE,
            name=self.key,
        )


def memory_points() -> list[MemoryPoint]:
    """Return all points: each model trained in two precisions and batches, and in inference; optimizers in turn."""
    return [point for number, model in enumerate(MODELS) for point in _of_model(number, *model)]


def _of_model(number: int, model: str, size: int, batch: int) -> Iterator[MemoryPoint]:
    """Yield the points of one model; every second one with checkpointing, every fourth with accumulation."""
    first, second, third = (OPTIMIZERS[(number + shift) % len(OPTIMIZERS)] for shift in (0, 1, 3))
    yield MemoryPoint(model, size, batch, Phase.TRAINING, Precision.FP32, first)
    yield MemoryPoint(model, size, 2 * batch, Phase.TRAINING, Precision.FP32, third)
    yield MemoryPoint(model, size, batch, Phase.TRAINING, Precision.AMP_BF16, second)
    inference_precision = (Precision.FP32, Precision.AMP_BF16, Precision.BF16)[number % 3]
    yield MemoryPoint(model, size, 4 * batch, Phase.INFERENCE, inference_precision)
    if "checkpointing" in SPECS[model].traits and number % 2:
        yield MemoryPoint(model, size, 2 * batch, Phase.TRAINING, Precision.FP32, first, checkpointing=True)
    if number % 4 == 0:
        yield MemoryPoint(model, size, batch, Phase.TRAINING, Precision.FP32, second, accumulation=2)


SCRIPT = Path(__file__).parents[1] / "measured" / "real_step.py"
THREADS = 1
TIMEOUT_S = 600.0
SCHEMA = "leadline.memory-points/1"
HOW = (
    "Each point runs in a fresh process, with a model of the kit and cross entropy. process_bytes is VmHWM after five"
    " steps. live_bytes is the size of parameters, buffers and optimizer state plus torch.profiler's memory events in"
    " the sixth step."
)


def main(arguments: Sequence[str]) -> int:
    """Measure all points that the file lacks; write it after each."""
    if len(arguments) != 1:
        sys.stderr.write("usage: python -m benchmarks.memory.points OUT.json\n")
        return 2
    target = Path(arguments[0])
    document: dict[str, Any] = json.loads(target.read_text()) if target.exists() else {"schema": SCHEMA, "points": []}
    measured = {point["key"]: point for point in document["points"]}
    points = memory_points()
    for number, point in enumerate(points, 1):
        if point.key in measured:
            continue
        peaks = measure_point(point)
        document |= {"machine": _machine(), "torch": peaks.pop("torch"), "threads": THREADS, "how": HOW}
        document["vector_bytes"] = peaks.pop("vector_bytes")
        measured[point.key] = {"key": point.key, **peaks}
        document["points"] = [measured[listed.key] for listed in points if listed.key in measured]
        target.write_text(to_json(document) + "\n", encoding="utf-8")
        sys.stderr.write(f"{number} of {len(points)}: {point.key}, {peaks['live_bytes'] / 1e6:.0f} MB live\n")
    return 0


def measure_point(point: MemoryPoint) -> dict[str, Any]:
    """Run the point in a fresh process; return its peaks.

    Raises:
        JobFailed: The process failed.
    """
    request = {**point.request(), "threads": THREADS}
    with tempfile.TemporaryDirectory(prefix="leadline-bench-") as folder:
        file = Path(folder, "request.json")
        file.write_text(json.dumps(request), encoding="utf-8")
        env = {"OMP_NUM_THREADS": str(THREADS), "CUDA_VISIBLE_DEVICES": ""}
        done = run_process([sys.executable, str(SCRIPT), str(file)], env=env, timeout_s=TIMEOUT_S)
    lines = done.stdout.splitlines()
    if done.returncode or not lines:
        raise JobFailed(f"{point.key} did not run: {(done.stderr.strip().splitlines() or ['no message'])[-1]}")
    peaks: dict[str, Any] = json.loads(lines[-1])
    return peaks


def _machine() -> dict[str, str]:
    return {"processor": cpu_model(), "system": platform.platform(), "python": platform.python_version()}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
