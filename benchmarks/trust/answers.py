"""Rows about answers: currencies, GPUs asked for, offloaded weights, quantized checkpoints, and unknown networks."""

import itertools
import json
import tempfile
from dataclasses import replace
from pathlib import Path

import msgspec

from benchmarks.results import BenchmarkRow, at_least, at_most, within
from benchmarks.speed import LLAMA_7B
from benchmarks.temporary import temporary_files
from benchmarks.trust.checkpoints import CHECKPOINTS, DEEPSEEK_V3_NEXT_TOKEN_BYTES, UNKNOWN_METHODS
from leadline.app.composition import toolbox
from leadline.app.estimate.estimate import estimate
from leadline.app.estimate.recommend import recommend
from leadline.app.workloads.options import WorkloadOptions
from leadline.app.workloads.read import read_workload
from leadline.core.errors import InvalidInput
from leadline.core.estimate import Basis, Estimate, Interval, Target, Tier
from leadline.core.hardware import Device, DeviceKind
from leadline.core.jobs import ResourceSpec
from leadline.core.recommendation import Constraints
from leadline.core.systems import Billing, BillingRule, NodeType, Partition, System
from leadline.core.units import GB, GIB, HOUR_S
from leadline.core.workload import Workload
from leadline.estimators.memory.offload import list_offloads
from leadline.recommendation.feasibility import PlacementCandidate
from leadline.recommendation.ranking import rank_candidates

TOKENS = 128


@temporary_files("leadline-trust-")
def rows() -> list[BenchmarkRow]:
    """Return all rows about answers that need no measured data."""
    return [
        places_without_gpus(), orders_by_name(), offloaded_decoding(), *checkpoint_sizes(), unknown_methods(),
        unnamed_dtypes(), unknown_network(), network_width(),
    ]  # fmt: skip


def places_without_gpus() -> BenchmarkRow:
    """Count places without GPUs among the options for 8 GPUs, over the whole catalog."""
    work = _workload(LLAMA_7B, batch=1, seq=512, steps=1000, gpus=8, sharding="full", precision="bf16")
    options = recommend(work, toolbox(), Constraints(deadline_s=48 * HOUR_S)).options
    empty = sum(option.resources.nodes * option.resources.gpus_per_node < 8 for option in options)
    return at_most("options without the 8 GPUs asked for", empty, 0, "options", n=len(options),
                   how="recommend --gpus 8 --deadline 48h over the catalog")  # fmt: skip


def orders_by_name() -> BenchmarkRow:
    """Count permutations of the currencies' names that change the order of options or hide the fastest place."""
    names = ("USD", "Expanse SU", "Zeta SU")
    hours = (20.0, 1.4, 6.0)
    wrong = 0
    permutations = list(itertools.permutations(names))
    for currencies, limits in itertools.product(permutations, (Constraints(), Constraints(deadline_s=24 * HOUR_S))):
        placed = [_candidate(currency, hour) for currency, hour in zip(currencies, hours, strict=True)]
        ordered = [option.estimate.elapsed_s for option in rank_candidates(placed, limits).options]
        wrong += [elapsed.point / HOUR_S for elapsed in ordered if elapsed] != sorted(hours)
    return at_most("orders decided by the name of a currency", wrong, 0, "orders", n=2 * len(permutations),
                   how="one place in each of three currencies, without limits and under a deadline")  # fmt: skip


def offloaded_decoding() -> BenchmarkRow:
    """Compare the time to generate with weights on the host to their transfers, once for each token."""
    work = _workload(LLAMA_7B, phase="inference", batch=1, seq=256, generate=TOKENS, precision="fp16")
    device = toolbox().catalog.device("T4")
    (predicted,) = estimate(work, toolbox(), on=["T4"]).estimates
    (offload,) = list_offloads(predicted, device, work)
    transfer_s = predicted.basis.memory_breakdown_bytes["parameter"] / (device.host_bytes_per_s or 0.0)
    seconds = offload.step_s.point if offload.step_s else 0.0
    return at_least("offloaded decoding ÷ the transfers of its weights", seconds / (TOKENS * transfer_s), 0.99, "ratio",
                    baseline=1 / TOKENS, how="Llama 7B on a T4, 128 tokens; baseline: one transfer")  # fmt: skip


def checkpoint_sizes() -> list[BenchmarkRow]:
    """Compare published sizes of quantized checkpoints, and the memory that gpt-oss-120b needs with 80 GB."""
    oss, deepseek = (_workload(CHECKPOINTS[name], phase="inference", batch=1, seq=512) for name in CHECKPOINTS)
    needed = estimate(oss, toolbox(), on=["H100 SXM5 80GB"]).estimates[0].gpu_memory_bytes
    weights = [_weight_bytes(work) for work in (oss, deepseek)]
    off = (
        100 * abs(weights[0] / GIB / 60.8 - 1),
        100 * abs((weights[1] + DEEPSEEK_V3_NEXT_TOKEN_BYTES) / GB / 689 - 1),
    )
    return [
        at_most("error of gpt-oss-120b's weights (mxfp4)", off[0], 1.0, "%", how="60.8 GiB, by its model card"),
        at_most("error of DeepSeek-V3's weights (fp8 blocks)", off[1], 1.0, "%",
                how="689 GB on disk, with its layer for multi-token prediction"),
        at_most("memory of gpt-oss-120b on one 80 GB GPU", needed.high / GIB if needed else 1e9, 80.0, "GiB",
                how="high end of the interval, 512 tokens"),
    ]  # fmt: skip


def unknown_methods() -> BenchmarkRow:
    """Count methods without a reader that are not refused in one sentence with their name."""
    silent = 0
    for method in UNKNOWN_METHODS:
        work = _workload({**LLAMA_7B, "quantization_config": {"quant_method": method}}, phase="inference", seq=64)
        try:
            estimate(work, toolbox(), on=["T4"])
        except InvalidInput as refusal:
            silent += f"{method!r} is unknown" not in str(refusal)
        else:
            silent += 1
    return at_most("unknown quantization methods without a refusal", silent, 0, "methods", n=len(UNKNOWN_METHODS))


def unnamed_dtypes() -> BenchmarkRow:
    """Count configurations without a dtype whose output does not name the assumption."""
    plain = {name: value for name, value in LLAMA_7B.items() if name not in ("dtype", "torch_dtype")}
    silent = 0
    for config in (plain, {**plain, "torch_dtype": "auto"}, {**plain, "quantization_config": {"quant_method": "eetq"}}):
        answer = estimate(_workload(config, phase="inference", seq=64), toolbox(), on=["T4"])
        silent += not any("names no dtype" in note and "--precision" in note for note in answer.notes)
    return at_most("unnamed dtypes without a note", silent, 0, "files", n=3)


def unknown_network() -> BenchmarkRow:
    """Compare 64 bare H100s with the same on AWS p5, whose network is in the catalog."""
    work = _multi_node()
    bare, aws = (
        estimate(work, toolbox(), on=[place]).estimates[0].step_s
        for place in ("H100 SXM5 80GB", "AWS us-east-1:p5.48xlarge")
    )
    ratio = bare.point / aws.point if bare and aws else float("nan")
    return within("step of 64 H100s, network unknown ÷ AWS p5", ratio, (0.8, 1.25), "ratio",
                  how="fully sharded Llama; an unknown network counted as 100 Gb/s a node before")  # fmt: skip


def network_width() -> BenchmarkRow:
    """Compare the interval's width with the network unknown and given; the output must name an unknown one."""
    unknown = estimate(_multi_node(), toolbox(), on=["H100 SXM5 80GB"]).estimates[0]
    given = estimate(_multi_node("400Gb/s/gpu"), toolbox(), on=["H100 SXM5 80GB"]).estimates[0]
    named = any("assumed network" in reason for reason in unknown.basis.reasons)
    ratio = (unknown.step_s.high / given.step_s.high) if named and unknown.step_s and given.step_s else 0.0
    return at_least("high end, network assumed and named ÷ given", ratio, 1.1, "ratio", how="64 H100s")


def _multi_node(network: str | None = None) -> Workload:
    return _workload(LLAMA_7B, batch=1, seq=2048, steps=10, gpus=64, sharding="full", precision="bf16", network=network)


def _weight_bytes(work: Workload) -> int:
    tools = toolbox()
    return tools.sources[work.model.kind](work, device_type="cuda").step.parameter_bytes


def _workload(config: dict[str, object], **options: object) -> Workload:
    """Return the workload of a configuration, read as from the command line."""
    folder = Path(tempfile.mkdtemp(prefix="leadline-trust-"))
    path = folder / "config.json"
    path.write_text(json.dumps(config), encoding="utf-8")
    return replace(read_workload([str(path)], msgspec.convert(options, WorkloadOptions)), name="model")


def _candidate(currency: str, hours: float) -> PlacementCandidate:
    """Return a made-up place that charges in ``currency`` and takes so many hours."""
    device = Device("V100", "nvidia", DeviceKind.GPU, memory_bytes=int(16 * GIB))
    billing = Billing(BillingRule.GPU_HOURS, currency, gpu_hour=1.0)
    partition = Partition(currency, NodeType("node", device="V100", gpus=8), billing=billing)
    seconds = hours * HOUR_S
    elapsed = Interval(seconds, seconds, seconds)
    predicted = Estimate(Target("V100", gpus=8), "made up", Basis(Tier.SPECS), elapsed_s=elapsed)
    request = ResourceSpec(gpus_per_node=8, walltime_s=seconds)
    return PlacementCandidate(
        System("Made up", "-", "hpc", "production", "slurm"), partition, device, predicted, request, 8.0
    )
