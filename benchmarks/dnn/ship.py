"""``python -m benchmarks.dnn.ship DATA``: fit the estimators on all measurements, and write what Leadline ships."""

import math
import platform
import sys
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

import msgspec
import numpy as np

from benchmarks.dnn.fit_kernels import shipped as fitted_kernels
from benchmarks.dnn.fit_steps import fitted_laws
from benchmarks.dnn.selection import records
from benchmarks.dnn.tried_steps import KERNELS, LAW, SPECS, SWEPT, VISION, tried
from benchmarks.dnn.vision_lab import DEVICES, Lab
from benchmarks.dnn.vision_tabular import StepTable
from benchmarks.dnn.vision_tabular import tried as tried_black_box
from leadline.catalog.read import TomlCatalog
from leadline.core.errors import InvalidInput, LeadlineError
from leadline.estimators.learned.selection import Domain, Group, Record
from leadline.estimators.learned.step_kernels import BlackBoxKernels, NetworkKernels
from leadline.estimators.tabular.ports import State
from leadline.training import shipped_models
from leadline.training.graph_network import NetworkCard, shipped_card
from leadline.training.shipped_files import FOLDER
from leadline.training.shipped_models import Card

NETWORK = NetworkKernels.name
LEARNED_FROM = {
    LAW: (
        "10,563 steps of 1,100 vision models of timm on two GPUs, half precision (pytorch-image-models, Apache-2.0)",
        "op graphs of those models, traced by Leadline",
    ),
    KERNELS: (
        "single kernels in single precision on six GPUs (NeuSight, MIT)",
        "products of layers of language models in half precision on A40, A100 and H100 (Vidur, MIT)",
    ),
    SWEPT: ("those kernels, and the sweep that leadline calibrate makes of the device",),
    BlackBoxKernels.name: ("the steps that the op law learned from, as a table of features",),
    NETWORK: ("the steps and op graphs that the op law learned from", "its own card, gnn.json"),
    SPECS: ("the maker's figures; its efficiencies are near several fits, as its module says",),
}
LIBRARIES = ("numpy", "scikit-learn", "lightgbm")
LIMITS = (
    "in vision only two GPUs were measured, both with GDDR memory: what a new one adds is known from each to the other",
    "the efficiency of attention in the maker's figures was chosen on llm-foundry's steps, on which it is judged here",
)


def main(arguments: list[str]) -> int:
    """Fit, and write; return the exit status."""
    try:
        if len(arguments) != 1:
            raise InvalidInput(f"{len(arguments)} arguments were given, not one: give the folder of measured data")
        _write(Path(arguments[0]))
    except LeadlineError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    for one in sorted(FOLDER.iterdir()):
        sys.stdout.write(f"{one.name}: {one.stat().st_size / 1e6:.2f} MB\n")
    return 0


def _write(data: Path) -> None:
    lab = Lab(data)
    fitted, laws, table = fitted_kernels(data), fitted_laws(lab), StepTable.of(lab)
    found = [*records(tried(data, fitted, laws, lab)), *records(tried_black_box(lab, table))]
    card = Card(
        schema="leadline.shipped/1",
        made_on=datetime.now(UTC).date().isoformat(),
        learned_from=LEARNED_FROM,
        records=(*found, *_network_records(shipped_card())),
        limits=LIMITS,
        versions={"python": platform.python_version(), **{name: version(name) for name in LIBRARIES}},
    )
    _save(FOLDER / shipped_models.KERNELS, fitted.dump())
    _save(FOLDER / shipped_models.STEPS, laws.dump())
    _save(FOLDER / shipped_models.BLACK_BOX, table.fitted(np.arange(len(table.step_s))).dump())
    (FOLDER / shipped_models.CARD).write_bytes(msgspec.json.format(msgspec.json.encode(card), indent=2) + b"\n")


def _network_records(card: NetworkCard) -> list[Record]:
    """Return what was found of the network, on the devices that it learned from."""
    found = []
    for phase, short in (("inference", "infer"), ("training", "train")):
        told = card.errors[f"unseen families, {phase}"]
        learned = sorted({one.split()[0] for one in card.settings if one.split()[1] == short})
        devices = [TomlCatalog(None).device(DEVICES[one]) for one in learned]
        found.append(
            Record(
                NETWORK, Group(Domain.VISION, "half", phase), known=True, error=told["mape"] / 100,
                within=-math.log1p(-told["p90"] / 100), steps=int(told["n"]),
                devices=tuple(one.name for one in devices), vendors=tuple(sorted({one.vendor for one in devices})),
                architectures=tuple(sorted({one.architecture or "" for one in devices})), source=VISION,
            )
        )  # fmt: skip
    return found


def _save(path: Path, state: State) -> None:
    np.savez_compressed(path, **state)  # type: ignore[arg-type]


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
