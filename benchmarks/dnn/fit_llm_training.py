"""``python -m benchmarks.dnn.fit_llm_training DATA FOLDER``: fit the shipped model of training steps.

The training data are all steps of llm-foundry; the card has the errors of the benchmark's splits on held-out steps.
"""

import platform
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

import numpy as np

from benchmarks.dnn.llm_training import DEVICES, Mask, MptSteps, splits, steps_of
from benchmarks.dnn.splits import SplitResult
from benchmarks.dnn.tables import read_table
from benchmarks.shipped.cards import StepModelCard
from benchmarks.shipped.step_model import fit_step_model, write_step_model
from leadline.core.errors import InvalidInput, LeadlineError
from leadline.estimators.step_time.transformer import COEFFICIENTS, MAGNITUDES
from leadline.training.transformer_steps import STEP_MODEL_CARD_FILE, STEP_MODEL_FILE, StepModel

REFUSED = (
    "inference, compiled steps, single precision",
    "tensor and pipeline parallelism; several GPUs that share out neither gradients nor weights",
    "mixtures of experts, encoders, sliding windows, attention that is written out op by op",
    "devices other than NVIDIA's GPUs, or without bandwidth, multiprocessors, clock or a half-precision peak",
)
LIMITS = (
    "decoders with gated blocks or fewer key-value heads were not measured: 5 % uncertainty is added, an assumption",
    "an unmeasured GPU generation adds 10 % uncertainty in products and 20 % in attention, an assumption",
    "more than 32 times outside the ranges, each e-fold adds 20 % uncertainty, an assumption",
    "six of the steps take 17 to 30 % longer than similar ones for no visible reason; they make the tails",
    "data loading, checkpoints, failures and congestion of a shared network are not included",
)


def inner_splits(table: MptSteps) -> list[tuple[Mask, Mask]]:
    """Return the inner extrapolations within all steps: more GPUs, longer sequences, the other A100."""
    splits = [(table.gpus <= most, table.gpus > most) for most in (8, 16, 32)]
    splits += [(table.sequence <= most, table.sequence >= 4 * most) for most in (512, 1024, 2048, 4096)]
    ampere = table.generation == "A100"
    return splits + [((table.gpu == gpu) | ~ampere, ampere & (table.gpu != gpu)) for gpu in ("a100_40gb", "a100_80gb")]


def fitted_step_model(table: MptSteps) -> StepModel:
    """Return the model of all steps."""
    return fit_step_model(table.steps, table.elapsed_s, table.configuration.tolist(), inner_splits(table))


def card_of(table: MptSteps, model: StepModel, splits: Sequence[SplitResult]) -> StepModelCard:
    """Return the card of a model fitted on all steps; ``splits`` are the benchmark's."""
    law, documents = model.law, [(split.split, split.document()) for split in splits]
    ranges = zip(MAGNITUDES, np.exp(law.least).tolist(), np.exp(law.most).tolist(), strict=True)
    return StepModelCard(
        schema="leadline.llm-training/1",
        made_on=datetime.now(UTC).date().isoformat(),
        sources=("llm-foundry's tables of training throughput (mosaicml/llm-foundry, scripts/train/benchmarking)",),
        licence="Apache-2.0, as the tables it learned from",
        rows=len(table.steps),
        devices=tuple(DEVICES.values()),
        ranges={name: (float(f"{low:.6g}"), float(f"{high:.6g}")) for name, low, high in ranges},
        errors={split: document["methods"]["Leadline"] for split, document in documents},  # type: ignore[index]
        coverage={split: document["coverage"] for split, document in documents},  # type: ignore[misc]
        coefficients={name: float(f"{value:.4g}") for name, value in zip(COEFFICIENTS, np.exp(law.theta), strict=True)},
        refused=REFUSED,
        limits=LIMITS,
        versions={"python": platform.python_version(), "numpy": np.__version__},
    )


def main(arguments: list[str]) -> int:
    """Fit the model, test the splits and write both files; return the exit status."""
    try:
        if len(arguments) != 2:
            raise InvalidInput(f"{len(arguments)} arguments: give a folder of data and a folder to fill")
        data, folder = (Path(argument) for argument in arguments)
        table = steps_of(read_table(data, "llm_foundry_train"))
        model = fitted_step_model(table)
        write_step_model(folder, model, card_of(table, model, splits(data, quick=False)))
    except LeadlineError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    file = folder / STEP_MODEL_FILE
    sys.stdout.write(f"{file}: {file.stat().st_size / 1e6:.2f} MB, with its card {STEP_MODEL_CARD_FILE}\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
