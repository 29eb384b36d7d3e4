"""``python -m leadline.bench.dnn.ship DATA``: fit the estimators on all measurements, and write what Leadline ships."""

import platform
import sys
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

import msgspec
import numpy as np

from leadline.bench.dnn.fit_kernels import shipped as fitted_kernels
from leadline.bench.dnn.fit_steps import fitted_laws
from leadline.bench.dnn.selection import records
from leadline.bench.dnn.tried_steps import KERNELS, LAW, SPECS, tried
from leadline.bench.dnn.vision_lab import Lab
from leadline.core.errors import InvalidInput, LeadlineError
from leadline.estimators.tabular.ports import State
from leadline.training import shipped_models
from leadline.training.shipped_files import FOLDER
from leadline.training.shipped_models import Card

LEARNED_FROM = {
    LAW: (
        "10,563 steps of 1,100 vision models of timm on two GPUs, half precision (pytorch-image-models, Apache-2.0)",
        "op graphs of those models, traced by Leadline",
    ),
    KERNELS: (
        "single kernels in single precision on six GPUs (NeuSight, MIT)",
        "products of layers of language models in half precision on A40, A100 and H100 (Vidur, MIT)",
    ),
    SPECS: ("the maker's figures; its efficiencies are near several fits, as its module says",),
}
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
    fitted, laws = fitted_kernels(data), fitted_laws(lab)
    card = Card(
        schema="leadline.shipped/1",
        made_on=datetime.now(UTC).date().isoformat(),
        learned_from=LEARNED_FROM,
        records=records(tried(data, fitted, laws, lab)),
        limits=LIMITS,
        versions={"python": platform.python_version(), **{name: version(name) for name in ("numpy", "scikit-learn")}},
    )
    _save(FOLDER / shipped_models.KERNELS, fitted.dump())
    _save(FOLDER / shipped_models.STEPS, laws.dump())
    (FOLDER / shipped_models.CARD).write_bytes(msgspec.json.format(msgspec.json.encode(card), indent=2) + b"\n")


def _save(path: Path, state: State) -> None:
    np.savez_compressed(path, **state)  # type: ignore[arg-type]


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
