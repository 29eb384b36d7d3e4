"""``python -m benchmarks.dnn.train_gnn DATA FOLDER``: train the graph neural network on all steps."""

import platform
import sys
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from benchmarks.dnn.gnn_data import GraphSteps
from benchmarks.dnn.gnn_network import StepNetwork, onnx_network, tensors
from benchmarks.dnn.vision_data import vision_steps
from benchmarks.dnn.vision_lab import FOLDS, VisionLab, fold_numbers
from benchmarks.shipped.cards import NetworkCard, write_card
from leadline.core.errors import InvalidInput, LeadlineError

Array = npt.NDArray[np.float64]
Whole = npt.NDArray[np.int64]

ODD = 0.08
"""Log errors below this count by their square, larger ones by their absolute value."""


@dataclass(frozen=True, slots=True)
class GnnTraining:
    """Training settings: passes over the rows, graphs in a step, peak learning rate, weight decay and seed."""

    epochs: int = 6
    batch: int = 32
    rate: float = 4e-3
    decay: float = 0.1
    seed: int = 0


def train_network(rows: GraphSteps, learn: Whole, how: GnnTraining) -> StepNetwork:
    """Return the network trained on the rows ``learn``, on one thread; the same seed gives the same network."""
    torch.set_num_threads(1)
    torch.manual_seed(how.seed)
    chance = np.random.default_rng(how.seed)
    sample = rows.batch(chance.permutation(learn)[:400]).node
    network = StepNetwork(sample.mean(0), np.maximum(sample.std(0), 0.3))
    steps = how.epochs * -(-len(learn) // how.batch)
    descent = torch.optim.AdamW(network.parameters(), lr=how.rate, weight_decay=how.decay)
    rate = torch.optim.lr_scheduler.OneCycleLR(descent, how.rate, total_steps=steps, pct_start=0.1)
    for _ in range(how.epochs):
        for chosen, batch in rows.batches(chance.permutation(learn), how.batch):
            measured = torch.from_numpy(np.log(rows.steps.step_s[chosen] * 1e6).astype(np.float32))
            error = torch.log(network(*tensors(batch))) - measured
            loss = torch.nn.functional.smooth_l1_loss(error, torch.zeros_like(error), beta=ODD)
            descent.zero_grad()
            (loss + network.penalty()).backward()
            torch.nn.utils.clip_grad_norm_(network.parameters(), 1.0)
            descent.step()
            rate.step()
    network.eval()
    return network


def network_steps(rows: GraphSteps, network: StepNetwork, ask: Whole) -> Array:
    """Return the step of each row in seconds."""
    with torch.no_grad():
        seconds = [network(*tensors(batch)).numpy() for _, batch in rows.batches(ask, 64)]
    return np.concatenate(seconds).astype(float) * 1e-6


def held_out(rows: GraphSteps, how: GnnTraining) -> Array:
    """Return the step of each row in seconds, by a network trained on the families of the other folds."""
    folds, predicted = fold_numbers(rows.steps.family, FOLDS, 0), np.empty(len(rows.steps.step_s))
    for fold in range(FOLDS):
        predicted[folds == fold] = network_steps(
            rows, train_network(rows, np.flatnonzero(folds != fold), how), np.flatnonzero(folds == fold)
        )
    return predicted


def held_out_by_law(data: Path) -> Array:
    """Return the step of the same rows by op models fitted to the other families."""
    lab = VisionLab(data)
    folds, predicted = fold_numbers(lab.steps.family, FOLDS, 0), np.empty(len(lab.steps.step_s))
    for fold in range(FOLDS):
        ask = np.flatnonzero(folds == fold)
        predicted[ask] = lab.answered(ask, lab.laws(np.flatnonzero(folds != fold)))[0]
    return predicted


def figures(measured: Array, predicted: Array) -> dict[str, float]:
    """Return MAPE, median and P90 of the errors in percent, and their number."""
    errors = 100 * np.abs(predicted / measured - 1)
    summary = {"mape": np.mean(errors), "median": np.median(errors), "p90": np.quantile(errors, 0.9)}
    return {name: round(float(error), 2) for name, error in summary.items()} | {"n": float(len(errors))}


def card_of(rows: GraphSteps, how: GnnTraining, network: Array, law: Array) -> NetworkCard:
    """Return the card of a network trained on all rows; ``network`` and ``law`` (rows,) are held-out predictions."""
    phase = np.array([str(setting).split()[0] for setting in rows.steps.setting])

    def by_phase(predicted: Array) -> dict[str, dict[str, float]]:
        return {
            f"unseen families, {name}": figures(rows.steps.step_s[phase == short], predicted[phase == short])
            for short, name in (("infer", "inference"), ("train", "training"))
            if (phase == short).any()
        }

    return NetworkCard(
        schema="leadline.gnn/1",
        made_on=datetime.now(UTC).date().isoformat(),
        sources=(
            "timm's benchmark results of inference and training steps (huggingface/pytorch-image-models, results/)",
            "op graphs of timm's models, traced by Leadline",
        ),
        licence="Apache-2.0, as the results it learned from",
        rows=len(rows.steps.step_s),
        graphs=rows.steps.table.graphs,
        devices=tuple(device.name for device in rows.devices.values()),
        settings=tuple(str(name) for name in np.unique(rows.names)),
        training={name: float(value) for name, value in asdict(how).items()},
        errors=by_phase(network),
        law=by_phase(law),
        versions={"python": platform.python_version(), "torch": str(torch.__version__), "numpy": np.__version__},
        limits="two GPUs and eager vision models in half precision: another device is an extrapolation from two points",
    )


def main(arguments: list[str]) -> int:
    """Train the network, test it on held-out families and write both files; return the exit status."""
    try:
        if len(arguments) != 2:
            raise InvalidInput(f"{len(arguments)} arguments: give a folder of data and a folder to fill")
        data, folder = (Path(argument) for argument in arguments)
        rows, how = GraphSteps(vision_steps(data)), GnnTraining()
        predicted, law = held_out(rows, how), held_out_by_law(data)
        everything = np.arange(len(rows.steps.step_s))
        write(folder, onnx_network(train_network(rows, everything, how), rows.batch(everything[:4])),
              card_of(rows, how, predicted, law))  # fmt: skip
    except LeadlineError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


def write(folder: Path, network: bytes, card: NetworkCard) -> None:
    """Write ``gnn.onnx`` and ``gnn.json``."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "gnn.onnx").write_bytes(network)
    write_card(folder / "gnn.json", card)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
