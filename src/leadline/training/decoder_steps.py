"""Training steps of transformers in any layout: the fitted model with intervals, its shipped file, and predictions."""

import math
from collections.abc import Mapping, Sequence
from functools import cache
from statistics import NormalDist
from typing import ClassVar

import msgspec
import numpy as np
from msgspec.structs import replace

from leadline.core.errors import InvalidInput
from leadline.core.estimate import Interval
from leadline.core.frozen import Frozen
from leadline.core.graph import TracedJob
from leadline.core.hardware import Device, DeviceKind
from leadline.core.workload import Fusion, Launch, Phase, Precision, Workload
from leadline.estimators.parallelism.decoder_work import read_work
from leadline.estimators.parallelism.fabric import Fabric
from leadline.estimators.parallelism.product_times import ProductCurves
from leadline.estimators.parallelism.step_parts import NAMES, log_slopes, step_parts, step_seconds
from leadline.estimators.parallelism.training_step import StepTable, TrainingStep
from leadline.estimators.ports import Array, Stored
from leadline.estimators.step_time.power_limit import describe_power_limit
from leadline.estimators.step_time.roofline import SLOW_HOST
from leadline.files.arrays import read_arrays
from leadline.training.shipped_files import read_shipped
from leadline.uncertainty.normalized_scores import NormalizedScores

STEP_MODEL_FILE, STEP_MODEL_CARD_FILE = "llm_training.npz", "llm_training.json"
LEVEL = 0.9
# Display names of the columns of `log_magnitudes`.
MAGNITUDES = ("GPUs", "channels", "parameters", "tokens a sequence", "tokens a microbatch")
# Deviations that no held-out source can test, of logarithms. All are assumptions.
# Coefficients that belong to a cluster: launch times of 9 to 50 µs a kernel were seen, and networks at 40 to 90 % of
# their rate.
CLUSTER = {"launch_s": 0.5, "network": 0.35, "data_exposed": 0.35}
# Logarithm of a slow host's launch times: 50 µs a kernel, against the 10 of the fit. It counts upwards only, and whole
# since a step waits for its host or does not.
SLOW_LAUNCHES = np.where(np.isin(NAMES, ("launch_s", "reduction_launch_s")), np.log(SLOW_HOST), 0.0)
# Steps with experts: the deviation of 52 configurations of two frameworks, each left out of the fit.
EXPERTS = 0.35
# CUDA graphs: the one such step that was measured, of small kernels, took 3.1 times the prediction.
GRAPHS = 0.7
# Whole steps on GPUs that no training step ran on: another generation of the same boards, or other boards, whose power
# limits and links differ, and other vendors'.
NEW_GENERATION, OTHER_BOARD = 0.15, 0.35
GROWTH = 0.2  # for each e-fold outside the range of the training data


def log_magnitudes(steps: Sequence[TrainingStep]) -> Array:
    """Return the log sizes (n, columns) that are compared with the training data."""
    rows = [(s.gpus, s.work.width, s.work.parameters, s.work.sequence, s.work.tokens) for s in steps]
    return np.log(np.array(rows, np.float64))


class DecoderStepModel(Stored):
    """Log coefficients (k,) with covariance (k, k), the times of products, and the spread between sources.

    ``scores`` are those of errors on sources that the fit had not seen. ``least`` and ``most`` are the log sizes
    (``log_magnitudes``) of the training data, and ``architectures`` those of their GPUs.
    """

    slow_host: ClassVar[Array] = SLOW_LAUNCHES
    cluster: ClassVar[Mapping[str, float]] = CLUSTER

    curves: ProductCurves
    theta: Array
    covariance: Array
    noise: float
    scores: NormalizedScores
    architectures: tuple[str, ...]
    least: Array
    most: Array

    def predict(self, steps: Sequence[TrainingStep], level: float = LEVEL) -> tuple[Array, Array, Array]:
        """Return the seconds of n steps, and the ends of their intervals, (n,) each.

        Raises:
            InvalidInput: a device lacks a specification, or the GPUs are not divisible by a layout.
        """
        return self._predict(StepTable(steps, self.curves), steps, level)

    def predict_with_parts(
        self, steps: Sequence[TrainingStep], level: float = LEVEL
    ) -> tuple[Array, Array, Array, dict[str, float]]:
        """Return what ``predict`` does, and the seconds of each part of the first step; errors as there."""
        table = StepTable(steps, self.curves)
        parts = {name: float(seconds[0]) for name, seconds in step_parts(self.theta, table).items()}
        return *self._predict(table, steps, level), parts

    def _predict(self, table: StepTable, steps: Sequence[TrainingStep], level: float) -> tuple[Array, Array, Array]:
        point, slow = step_seconds(self.theta + np.stack([np.zeros_like(self.slow_host), self.slow_host]), table)
        slopes = log_slopes(self.theta, table)
        spread = np.sqrt(np.einsum("ij,jk,ik->i", slopes, self.covariance, slopes) + self.noise**2)
        untested = np.hypot(self._untested(steps, slopes), table.power_spread)
        slower = np.log(slow / point) / NormalDist().inv_cdf((1 + LEVEL) / 2)
        low, high = self.scores.interval(point, spread, level, np.stack([untested, np.hypot(untested, slower)]))
        return point, low[0], high[1]

    def seconds(self, steps: Sequence[TrainingStep]) -> Array:
        """Return the seconds of n steps (n,) without intervals; errors as in ``predict``."""
        return step_seconds(self.theta, StepTable(steps, self.curves))

    def times_outside(self, steps: Sequence[TrainingStep]) -> Array:
        """Return the log factor by which each size (n, columns) is outside the training data."""
        sizes = log_magnitudes(steps)
        return np.maximum(np.maximum(sizes - self.most, self.least - sizes), 0.0)

    def _untested(self, steps: Sequence[TrainingStep], slopes: Array) -> Array:
        """Return the deviations (n,) of what no held-out source tests: clusters, experts, new GPUs, distance."""
        routed = (np.array([step.work.expert_weights for step in steps]) > 0) * 1.0
        cluster = [(size * slopes[:, NAMES.index(name)]) ** 2 for name, size in self.cluster.items()]
        captured = np.array([step.launch is Launch.GRAPHS for step in steps]) * 1.0
        variance = np.sum(cluster, axis=0) + (EXPERTS * routed) ** 2 + (GRAPHS * captured) ** 2
        variance += self._new_board(steps) ** 2
        distance = self.times_outside(steps).max(axis=1)
        return np.asarray(np.sqrt(variance + (GROWTH * distance) ** 2), np.float64)

    def _new_board(self, steps: Sequence[TrainingStep]) -> Array:
        """Return the deviations (n,) of GPUs that no training step ran on."""
        new = np.array([step.device.architecture not in self.architectures for step in steps])
        foreign = np.array([not is_measured_board(step.device) for step in steps])
        return np.where(foreign, OTHER_BOARD, new * NEW_GENERATION)


def is_measured_board(device: Device) -> bool:
    """Return whether a GPU is a board of the kind that the training steps ran on, NVIDIA's SXM or a later one."""
    form = device.form_factor or ""
    return device.vendor == "nvidia" and form.startswith(("SXM", "superchip"))


class StepModelErrors(Frozen):
    """Part of the model's card: configurations, and sources to their errors in percent when left out."""

    rows: int
    errors: dict[str, dict[str, float]]


class DecoderStepPrediction(Frozen):
    """The time of one optimizer step with its interval, parts and reasons."""

    step_s: Interval
    parts_s: Mapping[str, float]
    sentences: tuple[str, ...]


@cache
def shipped_step_model() -> DecoderStepModel:
    """Return the model that comes with Leadline."""
    return DecoderStepModel.load(read_arrays(read_shipped(STEP_MODEL_FILE), STEP_MODEL_FILE))


@cache
def shipped_step_model_errors() -> StepModelErrors:
    """Return the errors of the model that comes with Leadline."""
    return msgspec.json.decode(read_shipped(STEP_MODEL_CARD_FILE), type=StepModelErrors)


PRECISIONS = {
    Precision.BF16: "bfloat16", Precision.AMP_BF16: "bfloat16", Precision.FP16: "float16",
    Precision.AMP_FP16: "float16", Precision.FP8: "float8", Precision.MXFP8: "mxfloat8", Precision.NVFP4: "float4",
}  # fmt: skip


def make_training_step(workload: Workload, job: TracedJob, device: Device, fabric: Fabric) -> TrainingStep:
    """Return the step of a job whose trace is that of one GPU with the whole model.

    Raises:
        InvalidInput: the model does not apply; the message says why.
    """
    declared = workload.precision.value if workload.precision else job.loop.precision
    precision = next((each for each in PRECISIONS if each.value == declared), None)
    refusals = (
        (workload.phase is not Phase.TRAINING, "predicts nothing of inference"),
        (workload.adapters is not None, "covers only steps that train all weights"),
        (workload.compiled, "covers no steps that XLA compiles"),
        (device.kind is not DeviceKind.GPU, f"covers GPUs only, and {device.name} is none"),
        (precision is None, f"covers {', '.join(each.value for each in PRECISIONS)}, not {declared or 'fp32'}"),
    )
    reason = next((reason for applies, reason in refusals if applies), "")
    if reason or precision is None:
        raise InvalidInput(f"the training-step model {reason}")
    microbatches = max(workload.accumulation, job.loop.accumulation)
    work = read_work(job.step, microbatches)
    if not work.attention_blocks:
        raise InvalidInput("the training-step model covers transformers, and this graph shows no attention")
    step = TrainingStep(
        work=work,
        device=device,
        gpus=workload.gpus,
        island=-(-workload.gpus // fabric.islands),
        microbatches=microbatches,
        recompute=workload.recompute,
        dtype=PRECISIONS[precision],
        autocast=precision.autocast,
        launch=workload.launch,
    )
    per_gpu = fabric.island_bytes_per_s / step.island if fabric.island_bytes_per_s else step.gpu_network_bytes_per_s
    return replace(step, gpu_network_bytes_per_s=per_gpu).with_plan(workload.parallelism)


def predict_decoder_step(
    model: DecoderStepModel, job: TracedJob, workload: Workload, device: Device, fabric: Fabric
) -> DecoderStepPrediction:
    """Predict a transformer's training step from the trace of one GPU with the whole model.

    Raises:
        InvalidInput: the model does not apply; the message says why.
    """
    step = make_training_step(workload, job, device, fabric)
    slower, faster = fabric.link_ends(device)
    rates = [
        rate / step.island or step.gpu_network_bytes_per_s for rate in (fabric.high_bytes_per_s, fabric.low_bytes_per_s)
    ]
    steps = [step, replace(step, device=faster, gpu_network_bytes_per_s=rates[0]),
             replace(step, device=slower, gpu_network_bytes_per_s=rates[1])]  # fmt: skip
    point, low, high, parts = model.predict_with_parts(steps)
    usual = Interval(float(point[0]), float(low[0]), float(high[0]), LEVEL)
    interval = usual.widened(max(float(point[0] / point[1]), 1.0), max(float(point[2] / point[0]), 1.0))
    return DecoderStepPrediction(interval, parts, (*_sentences(model, step), *fabric.assumptions))


def _sentences(model: DecoderStepModel, step: TrainingStep) -> tuple[str, ...]:
    """Return the assumptions of a prediction, and where it extrapolates."""
    sentences = list(describe_power_limit(step.device)) if step.device.power_limit_w else []
    if step.plan.fusion is None and step.gpus > 1:
        usual = {Fusion.LIBRARY: "fused, as in Megatron and NeMo", Fusion.NONE: "not fused, as in transformers"}
        sentences.append(f"assumed: ops between products are {usual[step.fusion]} (set it with --fusion)")
    outside = model.times_outside([step])[0]
    for name, size, low, high, times in zip(
        MAGNITUDES, log_magnitudes([step])[0], model.least, model.most, outside, strict=True
    ):
        if times > 0.01:
            side, end = ("above", high) if size > high else ("below", low)
            sentences.append(
                f"extrapolating: {name} ({math.exp(size):.4g}) {side} the training data ({math.exp(end):.4g}); wider "
                "interval"
            )
    if step.device.architecture not in model.architectures:
        generation = step.device.architecture or step.device.name
        sentences.append(f"extrapolating: no training step on {generation} was measured; wider interval")
    elif not is_measured_board(step.device):
        sentences.append(
            f"extrapolating: training steps were measured on SXM boards, not on {step.device.name}; wider interval"
        )
    if step.launch is Launch.GRAPHS:
        sentences.append("assumed: CUDA graphs leave no launches and no constant of a step; wider interval")
    if step.work.expert_weights:
        sentences.append("experts: their time varies by 35 % between frameworks and versions; wider interval")
    return tuple(sentences)
