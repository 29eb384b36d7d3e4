"""Training steps of MPT models, 125M to 70B, on 8 to 512 A100s and H100s (llm-foundry's tables, Apache-2.0)."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from benchmarks.best_constant import best_constant
from benchmarks.dnn.baselines import boosted_rows, nearest_row
from benchmarks.dnn.splits import LEVEL, Array, SplitResult, joined_split
from benchmarks.dnn.tables import Columns, read_table
from benchmarks.shipped.step_model import fit_step_model
from benchmarks.shipped.transformer_fitting import fit_transformer_steps, model_flops
from leadline.catalog.read import TomlCatalog
from leadline.core.workload import Sharding
from leadline.estimators.step_time.transformer import TransformerStep

Mask = npt.NDArray[np.bool_]
Texts = npt.NDArray[np.str_]

TABLE = "LLM training"
SHAPES = {
    "125m": (12, 768), "350m": (24, 1024), "760m": (24, 1536), "1b": (24, 2048), "3b": (32, 2560), "7b": (32, 4096),
    "13b": (40, 5120), "30b": (48, 7168), "70b": (80, 8192),
}  # fmt: skip
"""Layers and width of each model, by the published configurations."""
VOCABULARY = 50_368
PER_NODE = 8
DEVICES = {"a100_40gb": "A100 SXM4 40GB", "a100_80gb": "A100 SXM4 80GB", "h100_80gb": "H100 SXM5 80GB"}
NETWORKS = {"a100_40gb": 200e9, "a100_80gb": 200e9, "h100_80gb": 400e9}
"""Bytes/s of a node: the A100s' as the tables say, the H100s' as usual, since the tables do not say it."""
SHARDINGS = {"FULL_SHARD": Sharding.FULL, "SHARD_GRAD_OP": Sharding.GRADIENTS}
DRAWS, FEW = 5, 20
SEED = 0


@dataclass(frozen=True, slots=True)
class MptSteps:
    """The n steps as nouns, their seconds, the column of the GPU, and plain features (n, columns)."""

    steps: Sequence[TransformerStep]
    elapsed_s: Array
    gpu: Texts
    features: Array

    def at(self, chosen: Mask) -> "MptSteps":
        """Return the rows where ``chosen`` is true."""
        kept = [self.steps[int(i)] for i in np.flatnonzero(chosen)]
        return MptSteps(kept, self.elapsed_s[chosen], self.gpu[chosen], self.features[chosen])

    @property
    def sequence(self) -> Array:
        """Tokens of each sequence."""
        return np.array([step.sequence for step in self.steps], float)

    @property
    def gpus(self) -> Array:
        """GPUs of each job."""
        return np.array([step.gpus for step in self.steps], float)

    @property
    def generation(self) -> Texts:
        """The generation of the GPUs, as people call it."""
        return np.array([name[:4].upper() for name in self.gpu])

    @property
    def configuration(self) -> Texts:
        """Return the configuration: model, length and GPU."""
        return np.array([f"{step.width} {step.sequence} {gpu}" for step, gpu in zip(self.steps, self.gpu, strict=True)])

    @property
    def float8(self) -> Mask:
        """Where products are in float8."""
        return np.array([step.dtype == "float8" for step in self.steps])


def splits(data: Path, *, quick: bool) -> list[SplitResult]:
    """Return the splits of the table; ``quick`` draws the 20 rows once instead of five times."""
    table = steps_of(read_table(data, "llm_foundry_train"))
    splits = [_more_gpus(table), _longer(table, 2048, 8192, 10.0), _longer(table, 4096, 16384, 9.0)]
    return [*splits, _other_generation(table), _few_rows(table, 1 if quick else DRAWS), _random(table)]


def steps_of(columns: Columns) -> MptSteps:
    """Return the steps of llm-foundry's table."""
    catalog = TomlCatalog()
    devices = {name: catalog.device(device) for name, device in DEVICES.items()}
    steps = []
    for i, model in enumerate(columns["model"]):
        layers, width = SHAPES[str(model)]
        gpu, gpus = str(columns["gpu"][i]), int(columns["gpus"][i])
        steps.append(
            TransformerStep(
                device=devices[gpu], gpus=gpus, nodes=max(1, gpus // PER_NODE), node_bytes_per_s=NETWORKS[gpu],
                layers=layers, width=width, vocabulary=VOCABULARY, block_weights=12.0 * layers * width**2,
                parameters=float(columns["numparams"][i]), sequence=int(columns["seqlen_t"][i]),
                microbatch=int(columns["microbatchsize"][i]), microbatches=int(columns["gradaccum"][i]),
                checkpointing=bool(columns["activation_checkpointing"][i]),
                dtype="float8" if columns["precision"][i] == "amp_fp8" else "bfloat16",
                reduced_bytes=2 if columns["mp_mode"][i] == "PURE" else 4,
                sharding=SHARDINGS[str(columns["sharding_strategy"][i])],
            )
        )  # fmt: skip
    elapsed_s = np.asarray(columns["globalbatchsize_t"] / columns["throughput_t_s"], float)
    return MptSteps(steps, elapsed_s, columns["gpu"].astype(np.str_), _features(steps))


def _features(steps: Sequence[TransformerStep]) -> Array:
    return np.array(
        [
            [np.log(s.parameters), np.log(s.sequence), np.log(s.microbatch), np.log(s.microbatches), np.log(s.gpus),
             np.log(s.device.peak_flops_per_s[s.dtype]), np.log(s.device.memory_bytes_per_s or 1), s.checkpointing]
            for s in steps
        ], float,
    )  # fmt: skip


def _more_gpus(table: MptSteps) -> SplitResult:
    """Learn below 64 GPUs, ask from 64 on; intervals from asking 16 and 32 of what 8 taught, and 32 of 8 and 16."""
    learned, held_out = table.at(table.gpus < 64), table.at(table.gpus >= 64)
    inner = [(learned.gpus <= least, learned.gpus > least) for least in (8, 16)]
    group = np.where(held_out.gpus >= 256, "256 and 512 GPUs", "64 and 128 GPUs")
    return _asked("64 and more GPUs from fewer", learned, held_out, inner, group, 3.5, "fewer than 64 GPUs")


def _longer(table: MptSteps, most: int, least: int, mape: float) -> SplitResult:
    """Learn sequences up to ``most``, ask from ``least``; intervals from the same ratio within the learned ones."""
    learned, held_out = table.at(table.sequence <= most), table.at(table.sequence >= least)
    ratio = least / most
    ends = [end for end in (512, 1024) if end * ratio <= most]
    inner = [(learned.sequence <= end, learned.sequence >= ratio * end) for end in ends]
    return _asked(
        f"from {least} tokens of up to {most}", learned, held_out, inner, held_out.generation, mape,
        f"sequences of up to {most} tokens",
    )  # fmt: skip


def _other_generation(table: MptSteps) -> SplitResult:
    """Train on A100s, test on H100s without float8; intervals from one A100 tested on the other."""
    learned, held_out = table.at(table.generation == "A100"), table.at((table.generation == "H100") & ~table.float8)
    inner = [(learned.gpu == gpu, learned.gpu != gpu) for gpu in ("a100_40gb", "a100_80gb")]
    eight = table.at(table.float8)
    point = fit_transformer_steps(learned.steps, learned.elapsed_s.tolist()).predict(eight.steps).point
    error = float(np.mean(100 * np.abs(point - eight.elapsed_s) / eight.elapsed_s))
    more = {"float8 rows, which no A100 has": {"n": len(point), "mape": round(error, 3)}}
    split = _asked("H100 from A100", learned, held_out, inner, held_out.generation, 12.0, "A100s of 40 and 80 GB")
    return replace(split, more=more)


def _few_rows(table: MptSteps, draws: int) -> SplitResult:
    """Learn A100s and 20 rows of H100s, ask the other H100s; several draws as one."""
    parts, rng = [], np.random.default_rng(SEED)
    for _ in range(draws):
        few = rng.permutation(np.flatnonzero(table.generation == "H100"))[:FEW]
        mask = table.generation == "A100"
        mask[few] = True
        learned, held_out = table.at(mask), table.at(~mask)
        new = learned.generation == "H100"
        folds = rng.integers(0, 4, len(new))
        inner = [(~(new & (folds == fold)), new & (folds == fold)) for fold in range(4)]
        part = _asked("", learned, held_out, inner, held_out.generation, None, "")
        parts.append(replace(part, unit=np.flatnonzero(~mask).astype(str)))
    return joined_split(
        TABLE, "other H100 from A100 and 20 H100", parts, mape=6.0,
        how=f"A100s and {FEW} steps of H100s; {draws} draws together",
    )  # fmt: skip


def _random(table: MptSteps) -> SplitResult:
    """Hold out each fifth of the configurations in turn."""
    names, which = np.unique(table.configuration, return_inverse=True)
    folds = np.random.default_rng(SEED).integers(0, 5, len(names))[which]
    parts = []
    for fold in range(5):
        learned, held_out = table.at(folds != fold), table.at(folds == fold)
        parts.append(_asked("", learned, held_out, [], held_out.generation, None, ""))
    return joined_split(TABLE, "random by configuration", parts, how="four fifths of model × length × GPU, in turn")


def _asked(
    split: str, learned: MptSteps, held_out: MptSteps, inner: Sequence[tuple[Mask, Mask]], group: Texts,
    mape: float | None, how: str,
) -> SplitResult:  # fmt: skip
    """Return the predictions of the held-out rows; the errors of ``inner`` extrapolations widen the intervals."""
    model = fit_step_model(learned.steps, learned.elapsed_s, learned.configuration.tolist(), inner)
    point, low, high = model.predict(held_out.steps, LEVEL)
    answers = {"Leadline": point, **_others(learned, held_out)}
    return SplitResult(TABLE, split, held_out.elapsed_s, answers, low, high, group, mape=mape, how=how)


def _others(learned: MptSteps, held_out: MptSteps) -> dict[str, Array]:
    """Return the answers of plain methods."""
    simple = [_six_n_d(part) for part in (learned, held_out)]
    constant = best_constant(list(learned.elapsed_s), list(simple[0]))
    roofs = [_roofs(part) for part in (learned, held_out)]
    two = _two_roofs(roofs[0], learned.elapsed_s) @ roofs[1].T
    ideal = [roof[:, 0] for roof in roofs]
    return {
        "6·N·D": simple[1] * constant,
        "two-parameter roofline": two,
        "nearest neighbour's utilisation": ideal[1]
        * nearest_row(learned.features, learned.elapsed_s / ideal[0], held_out.features),
        "boosting": boosted_rows(learned.features, learned.elapsed_s, held_out.features),
    }


def _six_n_d(part: MptSteps) -> Array:
    return np.array(
        [6 * s.parameters * s.tokens * s.microbatches / s.device.peak_flops_per_s[s.dtype] for s in part.steps]
    )


def _roofs(part: MptSteps) -> Array:
    """Return the seconds of arithmetic at the peak and of activations at the bandwidth (n, 2)."""
    return np.array(
        [
            [model_flops(s) / s.device.peak_flops_per_s[s.dtype],
             s.microbatches * s.tokens * s.layers * s.width * 2 / (s.device.memory_bytes_per_s or 1)]
            for s in part.steps
        ]
    )  # fmt: skip


def _two_roofs(roofs: Array, elapsed_s: Array) -> Array:
    from scipy.optimize import nnls  # noqa: PLC0415 - needed to fit alone

    return np.asarray(nnls(roofs / elapsed_s[:, None], np.ones(len(elapsed_s)))[0], np.float64)
