"""Measured steps of every group of graphs, and the predictions of estimators trained on other steps."""

import json
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path

import numpy as np
import numpy.typing as npt

from benchmarks.dnn import decode, transformers
from benchmarks.dnn.kernel_data import DEVICES as KERNEL_DEVICES
from benchmarks.dnn.splits import Array, Texts
from benchmarks.dnn.transformer_graphs import traced_transformers
from benchmarks.dnn.vision_graphs import vision_graphs
from benchmarks.dnn.vision_lab import DEVICES, FOLDS, VisionLab, carried_to, fold_numbers, inference, nearest_setting
from benchmarks.scale.rows import PER_NODE, scale_rows
from benchmarks.tables import read_table
from leadline.catalog.read import TomlCatalog
from leadline.core.errors import InvalidInput
from leadline.core.graph import OpGraph, TracedJob
from leadline.core.hardware import Device
from leadline.core.ports import KernelModel
from leadline.core.workload import (
    InputShape,
    ModelKind,
    ModelSource,
    Optimizer,
    Parallelism,
    Workload,
)
from leadline.estimators.memory.host import host_memory
from leadline.estimators.step_time.fitted_kernels import FittedKernels, LearnedKernels
from leadline.estimators.step_time.op_utilization_kernels import OpUtilizationKernels, OpUtilizationModels
from leadline.estimators.step_time.roofline import RooflineKernels
from leadline.estimators.step_time.selection import Domain, StepGroup, find_step_group
from leadline.estimators.step_time.swept_kernels import SweptKernels
from leadline.estimators.white_box import WhiteBox
from leadline.execution.processes import run_process
from leadline.graphs.hf_config.expand import expand
from leadline.graphs.torch.trace import trace_function

OP_MODEL, KERNELS, SWEPT, SPECS = (
    OpUtilizationKernels.name,
    LearnedKernels.name,
    SweptKernels.name,
    RooflineKernels.name,
)
MOST = 1500
"""Vision steps that are also predicted by kernels, at some milliseconds each."""
VISION = "timm's results, Apache-2.0"
TRANSFORMERS = "NeuSight's runs, MIT"
MPT = "llm-foundry"
LLM_TRAINING = "llm-foundry's tables, Apache-2.0"
LAYERS = "layers timed by Vidur, MIT"
RESNETS = "Gavel's ResNet-50, MIT"
RESNET_DEVICES = {"p100": "P100 PCIe 16GB", "v100": "V100 SXM2 16GB"}
RESNET = "from leadline.kit.zoo import build\n\n\ndef resnet50():\n    return build('resnet50', 224)\n"


@dataclass(frozen=True, slots=True)
class MeasuredSteps:
    """n steps of a group with their predictions; arrays of shape (n,).

    Attributes:
        configuration: A name that similar steps share.
        predicted: Estimator → seconds, NaN where it has none.
        known: The estimators' training data has these devices.
        swept: The kernels of each device were swept, as ``leadline calibrate`` does.
    """

    group: StepGroup
    source: str
    device: Texts
    configuration: Texts
    measured: Array
    predicted: dict[str, Array]
    known: bool = False
    swept: bool = False

    @property
    def name(self) -> str:
        """Return the name of the steps."""
        return f"{self.group}, {'known' if self.known else 'new'} devices{', swept' if self.swept else ''}"


def measured_groups(
    data: Path, fitted: FittedKernels, laws: OpUtilizationModels, lab: VisionLab
) -> list[MeasuredSteps]:
    """Return all groups; ``fitted`` and ``laws`` predict groups that are not in their training data."""
    return [
        *_vision(lab, fitted),
        *_transformers(data, laws),
        _llm_training(data, fitted, laws),
        _decoding(data),
        _resnets(data, fitted, laws),
    ]


def _vision(lab: VisionLab, fitted: FittedKernels) -> list[MeasuredSteps]:
    """Return vision steps; op models are fitted without their families, on the same GPU and on the other one."""
    steps = lab.steps
    count = len(steps.step_s)
    by_family = np.full(count, np.nan)
    fold = fold_numbers(steps.family, FOLDS, 0)
    for number in range(FOLDS):
        ask = np.flatnonzero(fold == number)
        by_family[ask] = lab.answered(ask, lab.laws(np.flatnonzero(fold != number)))[0]
    elsewhere = np.full(count, np.nan)
    for learned_device, unseen, number in product(lab.devices, lab.devices, range(FOLDS)):
        if learned_device == unseen:
            continue
        learn, out = inference(lab, learned_device), inference(lab, unseen)
        laws, out = lab.laws(learn[fold[learn] != number]), out[fold[out] == number]
        for setting in np.unique(lab.setting[out]):
            ask = out[lab.setting[out] == setting]
            near = nearest_setting(laws, lab, ask, learned_device)
            elsewhere[ask] = lab.priced(ask, carried_to(learned_device, unseen), laws, near).step_s
    rows = np.sort(np.random.default_rng(0).permutation(count)[:MOST])
    graphs = vision_graphs()
    each = [
        graphs.graph(graphs.packed.graphs[steps.traced[steps.graph[row]]], int(steps.columns["batch_size"][row]))
        for row in rows
    ]
    devices = [lab.devices[str(device_name)] for device_name in steps.device[rows]]
    kernels = _priced(each, devices, lambda device, _: LearnedKernels(fitted, device))
    specs = _priced(each, devices, lambda device, _: RooflineKernels(device))
    groups = [find_step_group(device_name, device) for device_name, device in zip(each, devices, strict=True)]
    answers = []
    for same_device, law in ((True, by_family), (False, elsewhere)):
        for group in sorted(set(groups), key=str):
            mask = np.array([device_name == group for device_name in groups]) & np.isfinite(law[rows])
            predicted = {OP_MODEL: law[rows][mask], KERNELS: kernels[mask], SPECS: specs[mask]}
            device = np.array([DEVICES[str(device_name)] for device_name in steps.device[rows][mask]])
            if mask.any():
                model = steps.model[rows][mask]
                answers.append(
                    MeasuredSteps(group, VISION, device, model, steps.step_s[rows][mask], predicted, same_device)
                )
    return answers


def _transformers(data: Path, laws: OpUtilizationModels) -> list[MeasuredSteps]:
    """Return whole transformers in single precision, with each device held out, or with a sweep of it."""
    runs, groups = traced_transformers(data), []
    for split in transformers.splits(data):
        training, swept = split.split.startswith("training"), split.split.endswith("sweep on it")
        mode_runs = [run for name in sorted({run.device for run in runs}) for run in runs
               if run.device == name and run.training is training]  # fmt: skip
        if [run.elapsed_s for run in mode_runs] != split.measured.tolist():
            raise InvalidInput(f"the runs of {split.name} are not those that were traced: read both tables again")
        devices = [TomlCatalog().device(KERNEL_DEVICES[run.device]) for run in mode_runs]
        law = _priced([run.graph for run in mode_runs], devices, _by_law(laws))
        kernels, specs, *_ = split.answers.values()
        names = np.array([run.name for run in mode_runs])
        group = StepGroup(Domain.LANGUAGE, "single", "training" if training else "inference")
        predicted = {OP_MODEL: law, SWEPT if swept else KERNELS: kernels, SPECS: specs}
        groups.append(
            MeasuredSteps(group, TRANSFORMERS, _names(devices), names, split.measured, predicted, swept=swept)
        )
    return groups


def _llm_training(data: Path, fitted: FittedKernels, laws: OpUtilizationModels) -> MeasuredSteps:
    """Return llm-foundry's training steps in half precision on 8 or more GPUs, by the whole white box."""
    models: dict[str, Callable[[Device, OpGraph], KernelModel]] = {
        OP_MODEL: _by_law(laws),
        KERNELS: lambda device, _: LearnedKernels(fitted, device),
        SPECS: lambda device, _: RooflineKernels(device),
    }
    rows = [row for row in scale_rows(data) if row.source == MPT and row.step.dtype == "bfloat16"]
    predicted: dict[str, list[float]] = {name: [] for name in models}
    jobs: dict[Workload, TracedJob] = {}
    group = None
    with tempfile.TemporaryDirectory() as folder:
        for row in rows:
            path = Path(folder) / f"{row.model}-{row.workload.sequence}.json"
            path.write_text(json.dumps(row.config), encoding="utf-8")
            workload = replace(row.workload, model=ModelSource(ModelKind.HF_CONFIG, str(path)))
            alone = replace(workload, gpus=1, parallelism=Parallelism())
            job = jobs.get(alone) or jobs.setdefault(alone, expand(alone))
            group = group or find_step_group(job.step, row.step.device)
            for name, kernels in models.items():
                predicted[name].append(_white_box_s(workload, job, row.step.device, kernels))
    if group is None:
        raise InvalidInput(f"{data} has no steps of {MPT}")
    answers = {name: np.array(seconds) for name, seconds in predicted.items()}
    devices, names = [row.step.device for row in rows], [f"{row.model} {row.workload.sequence}" for row in rows]
    measured = np.array([row.elapsed_s for row in rows])
    return MeasuredSteps(group, LLM_TRAINING, _names(devices), np.array(names), measured, answers)


def _white_box_s(
    workload: Workload, job: TracedJob, device: Device, kernels: Callable[[Device, OpGraph], KernelModel]
) -> float:
    """Return the seconds of the step over all GPUs; NaN where the kernels refuse the graph."""
    box = WhiteBox(host_memory, lambda device, traced_job: kernels(device, traced_job.step))
    step_s = box.estimate(workload, job, device, nodes=max(1, workload.gpus // PER_NODE)).step_s
    return step_s.point if step_s else float("nan")


def _decoding(data: Path) -> MeasuredSteps:
    """Return the products of layers of language models in half precision, from specifications."""
    split = decode.splits(data)[0]
    columns = read_table(data, "vidur_llm_layers")
    mask = columns["num_tokens"] <= decode.MOST_SEQUENCES
    device = np.array([KERNEL_DEVICES[str(name)] for name in columns["device"][mask]])
    widths = zip(columns["n_embd"][mask], columns["n_expanded_embd"][mask], strict=True)
    names = np.array([f"{width} {inner}" for width, inner in widths])
    group = StepGroup(Domain.LANGUAGE, "half", "inference")
    return MeasuredSteps(group, LAYERS, device, names, split.measured, {SPECS: next(iter(split.answers.values()))})


def _resnets(data: Path, fitted: FittedKernels, laws: OpUtilizationModels) -> MeasuredSteps:
    """Return training steps of ResNet-50 in single precision on one GPU."""
    columns = read_table(data, "gavel_steps")
    measured, devices, graphs, batches = [], [], [], []
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.py"
        path.write_text(RESNET, encoding="utf-8")
        for row in np.flatnonzero((columns["model"] == "ResNet-50") & (columns["scale_factor"] == 1)):
            name, rate = str(columns["hardware"][row]), float(columns["steps_per_s"][row])
            if name in RESNET_DEVICES and rate > 0 and str(columns["file"][row]).startswith("physical"):
                shape = InputShape((int(columns["batch_size"][row]), 3, 224, 224))
                workload = Workload(
                    ModelSource(ModelKind.FUNCTION, f"{path}:resnet50"), inputs=(shape,), optimizer=Optimizer.MOMENTUM
                )
                graphs.append(trace_function(workload, runner=run_process).step)
                devices.append(TomlCatalog().device(RESNET_DEVICES[name]))
                measured.append(1 / rate)
                batches.append(str(shape.shape[0]))
    predicted = {
        OP_MODEL: _priced(graphs, devices, _by_law(laws)),
        KERNELS: _priced(graphs, devices, lambda device, _: LearnedKernels(fitted, device)),
        SPECS: _priced(graphs, devices, lambda device, _: RooflineKernels(device)),
    }
    group = find_step_group(graphs[0], devices[0])
    return MeasuredSteps(group, RESNETS, _names(devices), np.array(batches), np.array(measured), predicted)


def _by_law(laws: OpUtilizationModels) -> Callable[[Device, OpGraph], KernelModel]:
    devices = TomlCatalog(None).device
    return lambda device, graph: OpUtilizationKernels(laws, device, graph, devices=devices)


def _priced(
    graphs: Sequence[OpGraph], devices: Sequence[Device], kernels: Callable[[Device, OpGraph], KernelModel]
) -> Array:
    """Return the seconds of each graph on its device; NaN where the method refuses."""
    seconds = []
    for graph, device in zip(graphs, devices, strict=True):
        try:
            seconds.append(kernels(device, graph).step_s(graph))
        except InvalidInput:
            seconds.append(np.nan)
    return np.array(seconds)


def _names(devices: Sequence[Device]) -> npt.NDArray[np.str_]:
    return np.array([device.name for device in devices])
