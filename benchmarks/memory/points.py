"""The points of the bench: models of the kit, at sizes of which a step takes a second, each trained and asked."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from leadline.core.workload import InputShape, ModelKind, ModelSource, Optimizer, Phase, Precision, Workload
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
class Point:
    """One job; ``optimizer`` is empty in inference."""

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
        """What kind of model it is: the kit's family, or the model's own name where it is of another package."""
        spec = SPECS[self.model]
        return self.model.partition(":")[2].partition("-")[0] if spec.package else spec.family

    @property
    def key(self) -> str:
        """The point in words, different for each."""
        marks = [f"accumulate {self.accumulation}"] if self.accumulation > 1 else []
        marks += ["checkpointing"] if self.checkpointing else []
        rule = [self.optimizer.value] if self.optimizer else []
        return " ".join([f"{self.model}-{self.size} b{self.batch}", self.phase, self.precision, *rule, *marks])

    @property
    def input(self) -> InputShape:
        """Shape and dtype of one batch."""
        kind = SPECS[self.model].kind
        sizes = {"image": (3, self.size, self.size)}.get(kind, (self.size,))
        return InputShape((self.batch, *sizes), "int64" if kind == "tokens" else "float32")

    def request(self) -> dict[str, object]:
        """Return the point as the scripts that run it read it."""
        return {
            "key": self.key, "model": self.model, "size": self.size, "phase": self.phase.value,
            "precision": self.precision.value, "optimizer": self.optimizer.value if self.optimizer else "",
            "accumulation": self.accumulation, "checkpointing": self.checkpointing, "shape": self.input.shape,
            "dtype": self.input.dtype,
        }  # fmt: skip

    def workload(self, folder: Path) -> Workload:
        """Return the point as a user would ask for it; a file that builds the model is written into ``folder``."""
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
            checkpointing=self.checkpointing,
            name=self.key,
        )


def points() -> list[Point]:
    """Return all points: each model trained in two precisions and batches, and asked, by update rules in turn."""
    return [point for number, of_one in enumerate(MODELS) for point in _of_model(number, *of_one)]


def _of_model(number: int, model: str, size: int, batch: int) -> Iterator[Point]:
    """Yield the points of one model; every third also with checkpoints, every fourth in several passes."""
    first, second, third = (OPTIMIZERS[(number + shift) % len(OPTIMIZERS)] for shift in (0, 1, 3))
    yield Point(model, size, batch, Phase.TRAINING, Precision.FP32, first)
    yield Point(model, size, 2 * batch, Phase.TRAINING, Precision.FP32, third)
    yield Point(model, size, batch, Phase.TRAINING, Precision.AMP_BF16, second)
    asked = (Precision.FP32, Precision.AMP_BF16, Precision.BF16)[number % 3]
    yield Point(model, size, 4 * batch, Phase.INFERENCE, asked)
    if "checkpointing" in SPECS[model].traits and number % 2:
        yield Point(model, size, 2 * batch, Phase.TRAINING, Precision.FP32, first, checkpointing=True)
    if number % 4 == 0:
        yield Point(model, size, batch, Phase.TRAINING, Precision.FP32, second, accumulation=2)
