"""``python -m benchmarks.dnn.ship DATA``: fit the estimators on all measurements and write the shipped models."""

import math
import platform
import sys
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

import numpy as np

from benchmarks.dnn.fit_kernels import fitted_op_models
from benchmarks.dnn.fit_kernels import shipped_kernels as fitted_kernels
from benchmarks.dnn.kernel_fitting import dump_kernels
from benchmarks.dnn.measured_steps import KERNELS, OP_MODEL, SPECS, SWEPT, VISION, measured_groups
from benchmarks.dnn.selection import records
from benchmarks.dnn.vision_lab import DEVICES, VisionLab
from benchmarks.dnn.vision_tabular import StepTable
from benchmarks.dnn.vision_tabular import black_box_groups as tried_black_box
from benchmarks.shipped.cards import NetworkCard, ShippedEstimatorsCard, shipped_network_card, write_card
from leadline.catalog.read import TomlCatalog
from leadline.core.errors import InvalidInput, LeadlineError
from leadline.estimators.ports import State
from leadline.estimators.step_time.selection import AccuracyRecord, Domain, StepGroup
from leadline.estimators.step_time.step_kernels import BlackBoxKernels, NetworkKernels
from leadline.training import shipped_models
from leadline.training.shipped_files import SHIPPED_FOLDER

NETWORK = NetworkKernels.name
LEARNED_FROM = {
    OP_MODEL: (
        "10,563 steps of 1,100 vision models of timm on two GPUs, half precision (pytorch-image-models, Apache-2.0)",
        "op graphs of those models, traced by Leadline",
    ),
    KERNELS: (
        "single kernels in single precision on six GPUs (NeuSight, MIT)",
        "products of layers of language models in half precision on A40, A100 and H100 (Vidur, MIT)",
    ),
    SWEPT: ("those kernels, and the sweep of the device by leadline calibrate",),
    BlackBoxKernels.name: ("the steps in the op model's training data, as a table of features",),
    NETWORK: ("the steps and op graphs in the op model's training data", "its own card, gnn.json"),
    SPECS: ("the vendor's specifications; its efficiencies are near several fits, as its module explains",),
}
LIBRARIES = ("numpy", "scikit-learn", "lightgbm")
LIMITS = (
    "vision was measured on two GPUs only, both with GDDR memory: a new GPU's error is known from each to the other",
    "the efficiency of attention in the specifications was chosen on llm-foundry's steps, on which it is tested here",
)


def main(arguments: list[str]) -> int:
    """Fit the models and write them; return the exit status."""
    try:
        if len(arguments) != 1:
            raise InvalidInput(f"{len(arguments)} arguments: give the folder of measured data")
        _write(Path(arguments[0]))
    except LeadlineError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    for file in sorted(SHIPPED_FOLDER.iterdir()):
        sys.stdout.write(f"{file.name}: {file.stat().st_size / 1e6:.2f} MB\n")
    return 0


def _write(data: Path) -> None:
    lab = VisionLab(data)
    fitted, laws, table = fitted_kernels(data), fitted_op_models(lab), StepTable.of(lab)
    steps_records = [*records(measured_groups(data, fitted, laws, lab)), *records(tried_black_box(lab, table))]
    card = ShippedEstimatorsCard(
        schema="leadline.shipped/1",
        made_on=datetime.now(UTC).date().isoformat(),
        learned_from=LEARNED_FROM,
        records=(*steps_records, *_network_records(shipped_network_card())),
        limits=LIMITS,
        versions={"python": platform.python_version(), **{name: version(name) for name in LIBRARIES}},
    )
    _save(SHIPPED_FOLDER / shipped_models.KERNELS_FILE, dump_kernels(fitted))
    _save(SHIPPED_FOLDER / shipped_models.STEPS_FILE, laws.dump())
    _save(SHIPPED_FOLDER / shipped_models.BLACK_BOX_FILE, table.fitted(np.arange(len(table.step_s))).dump())
    write_card(SHIPPED_FOLDER / shipped_models.CARD_FILE, card)


def _network_records(card: NetworkCard) -> list[AccuracyRecord]:
    """Return the network's records on the devices of its training data."""
    network_records = []
    for phase, short in (("inference", "infer"), ("training", "train")):
        errors = card.errors[f"unseen families, {phase}"]
        learned = sorted({setting.split()[0] for setting in card.settings if setting.split()[1] == short})
        devices = [TomlCatalog(None).device(DEVICES[name]) for name in learned]
        network_records.append(
            AccuracyRecord(
                NETWORK, StepGroup(Domain.VISION, "half", phase), known=True, error=errors["mape"] / 100,
                within=-math.log1p(-errors["p90"] / 100), steps=int(errors["n"]),
                devices=tuple(device.name for device in devices),
                vendors=tuple(sorted({device.vendor for device in devices})),
                architectures=tuple(sorted({device.architecture or "" for device in devices})), source=VISION,
            )
        )  # fmt: skip
    return network_records


def _save(path: Path, state: State) -> None:
    np.savez_compressed(path, **state)  # type: ignore[arg-type]


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
