"""The fastest layout of a transformer's training that fits: ``--layout auto``."""

from collections.abc import Sequence
from functools import partial

import numpy as np
from msgspec.structs import replace

from leadline.app.background import report_step
from leadline.app.estimate.step_models import step_model_of
from leadline.app.machines.targets import ResolvedTarget
from leadline.core.errors import InvalidInput
from leadline.core.frozen import Frozen
from leadline.core.graph import TracedJob
from leadline.core.ports import GraphSource
from leadline.core.units import format_bytes, format_duration
from leadline.core.workload import Fusion, ModelKind, Parallelism, Phase, Recompute, Workload
from leadline.estimators.gpu_memory_interval import predict_gpu_memory
from leadline.estimators.memory.device import PeakMemory, job_peak, usable_bytes
from leadline.estimators.memory.workspaces import Workspaces
from leadline.estimators.parallelism.decoder_work import extend_batch
from leadline.estimators.parallelism.divided_memory import divide_memory, widen_divided_memory
from leadline.estimators.parallelism.fabric import Fabric, job_fabric
from leadline.estimators.parallelism.layouts import LARGEST_BATCH, Layout, candidate_layouts, describe_layout
from leadline.estimators.parallelism.training_step import TrainingStep
from leadline.estimators.ports import Array
from leadline.estimators.recent_cache import RecentResults
from leadline.estimators.step_time.selection import find_domain
from leadline.recommendation.memory_fit import check_memory
from leadline.training.decoder_steps import make_training_step

MOST_CHECKED = 400
"""Layouts whose memory is predicted at most, the fastest first."""
SURE_GROWTH = 0.5
"""Share of the bytes of a second sample that each further one needs at least; blocks for the second may fit more."""


class LayoutChoice(Frozen):
    """The workload with the fastest layout that fits, and the reason."""

    workload: Workload
    reason: str


def choose_layout(workload: Workload, expand: GraphSource, place: ResolvedTarget, risk: float) -> LayoutChoice:
    """Return ``workload`` with the layout of the least predicted time whose memory fits at a risk.

    ``expand`` traces a ``config.json``.

    Raises:
        InvalidInput: layouts are not predicted for this workload, or none fits.
    """
    if workload.model.kind is not ModelKind.HF_CONFIG or workload.phase is not Phase.TRAINING:
        raise InvalidInput("--layout auto is for training the model of a config.json: leave it out")
    return _Search(workload, expand, place, risk).best()


class _Search:
    """One search on one place; traces and peaks are made on first use."""

    def __init__(self, workload: Workload, expand: GraphSource, place: ResolvedTarget, risk: float) -> None:
        self.workload, self.expand, self.device, self.risk = workload, expand, place.device, risk
        self.usable_bytes = usable_bytes(workload, place.device) or float("inf")
        node = place.partition.node if place.partition else None
        nodes = place.target.nodes if node else None
        self.fabric: Fabric = job_fabric(workload, place.device, nodes, node.network_bytes_per_s if node else None)
        batch = (workload.batch or 1) * workload.accumulation * workload.parallelism.copies(workload.gpus)
        self.global_batch = workload.global_batch or batch
        # All layouts are compared in one framework, and only libraries have them all.
        plan = workload.parallelism
        self.base = replace(plan, fusion=plan.fusion or Fusion.LIBRARY)
        self._jobs: dict[tuple[int, Recompute], TracedJob] = {}
        self._steps: dict[int, TrainingStep] = {}
        self._peaks = RecentResults[PeakMemory](2 * LARGEST_BATCH)

    def best(self) -> LayoutChoice:
        """Return the choice."""
        first = self._step(1)
        layouts = list(
            candidate_layouts(
                first.work, self.base, gpus=self.workload.gpus, global_batch=self.global_batch,
                island=first.island,
            )
        )  # fmt: skip
        if not layouts:
            raise InvalidInput(
                f"no layout divides {self.global_batch} samples a step over {self.workload.gpus} GPUs: give another "
                "--global-batch"
            )
        report_step(f"comparing {len(layouts)} layouts")
        seconds = self._seconds(layouts)
        order = np.argsort(seconds, kind="stable")[:MOST_CHECKED]
        least, chosen = float("inf"), list[int]()
        for checked, place in enumerate(order.tolist(), 1):
            needed = self._needed_bytes(layouts[place])
            least = min(least, needed)
            if needed <= self.usable_bytes:
                chosen.append(place)
            if len(chosen) == 2 or (chosen and checked == len(order)):
                break
        if not chosen:
            raise InvalidInput(
                f"none of {len(layouts)} layouts fits into {self.workload.gpus} × {self.device.name}: the least memory "
                f"of a GPU is {format_bytes(least)}; use more GPUs or a smaller --global-batch"
            )
        return self._choice(layouts, seconds, chosen, list(order).index(chosen[0]))

    def _choice(self, layouts: Sequence[Layout], seconds: Array, chosen: Sequence[int], faster: int) -> LayoutChoice:
        layout = layouts[chosen[0]]
        reason = f"layout: {describe_layout(layout)}; the fastest of {len(layouts)} that fits"
        if faster:
            reason += f" ({faster} faster ones do not)"
        if len(chosen) > 1:
            slower = (
                f"{format_duration(float(seconds[chosen[1]]))} instead of {format_duration(float(seconds[chosen[0]]))}"
            )
            reason += f"; next: {describe_layout(layouts[chosen[1]])} ({slower})"
        if self.workload.parallelism.fusion is None:
            reason += "; assumed: fused ops, as in Megatron and NeMo (set it with --fusion)"
        return LayoutChoice(self._variant(layout), reason)

    def _variant(self, layout: Layout) -> Workload:
        return replace(
            self.workload, parallelism=layout.plan, batch=layout.batch, accumulation=layout.microbatches,
            recompute=layout.recompute, automatic_layout=False,
        )  # fmt: skip

    def _job(self, batch: int, recompute: Recompute) -> TracedJob:
        """Return the trace of one microbatch on one GPU with the whole model."""
        kept = Recompute.FULL if recompute is Recompute.FULL else Recompute.NONE
        if (batch, kept) not in self._jobs:
            alone = replace(
                self.workload, gpus=1, parallelism=Parallelism(fusion=self.base.fusion), batch=batch, accumulation=1,
                recompute=kept, automatic_layout=False,
            )  # fmt: skip
            self._jobs[batch, kept] = self.expand(alone, device_type="cuda")
        return self._jobs[batch, kept]

    def _step(self, batch: int) -> TrainingStep:
        """Return the step of one microbatch of ``batch`` samples; that of one and of two are traced."""
        if batch > 2:
            one, two = self._step(1), self._step(2)
            return replace(one, work=extend_batch(one.work, two.work, batch))
        if batch not in self._steps:
            whole = replace(
                self.workload, parallelism=Parallelism(fusion=self.base.fusion), batch=batch, accumulation=1
            )
            job = self._job(batch, Recompute.NONE)
            self._steps[batch] = make_training_step(whole, job, self.device, self.fabric)
        return self._steps[batch]

    def _seconds(self, layouts: Sequence[Layout]) -> Array:
        base = {batch: self._step(batch) for batch in sorted({layout.batch for layout in layouts})}
        steps = [
            replace(
                base[layout.batch], microbatches=layout.microbatches, recompute=layout.recompute
            ).with_plan(layout.plan)
            for layout in layouts
        ]  # fmt: skip
        return step_model_of(self.device, self.workload.launch_s)[0].seconds(steps)

    def _needed_bytes(self, layout: Layout) -> float:
        """Return the bytes of GPU memory that a layout needs at the risk.

        Where those of one and two samples a microbatch show that more do not fit, a lower bound is returned.
        """
        if layout.batch > 1:
            least = one = self._needed_bytes(replace(layout, batch=1))
            if layout.batch > 2 and one <= self.usable_bytes:
                two = self._needed_bytes(replace(layout, batch=2))
                least = one + SURE_GROWTH * (layout.batch - 1) * max(two - one, 0.0)
            if least > self.usable_bytes:
                return least
        job = self._job(layout.batch, layout.recompute)
        whole = self._peaks.get(job, Workspaces.of(self.device), partial(job_peak, job, self.device))
        peak = divide_memory(whole, self._variant(layout), job.step)
        memory = predict_gpu_memory(peak, job.step, find_domain(job.step), self.device)
        memory = widen_divided_memory(memory, self._variant(layout))
        return check_memory("GPU", memory, None, self.risk).needed_bytes
