"""The law of decoders' training steps, where it applies: it learned from whole steps on 8 to 512 GPUs."""

from leadline.app import settings
from leadline.core.errors import InvalidInput
from leadline.core.graph import TracedJob
from leadline.core.hardware import Device, DeviceKind
from leadline.core.workload import Phase, Workload
from leadline.estimators.whitebox import WholeStep

NAME = "law of decoders' steps"
FARTHEST = 2.0
"""A model whose sizes lie farther outside those learned from is priced by its kernels, of which the law knows none."""


def decoder_step(
    workload: Workload, job: TracedJob, device: Device, nodes: int, interconnect: str | None
) -> WholeStep | None:
    """Return what the law says of a training step; ``None`` where it does not apply, or own steps know better."""
    if device.kind is not DeviceKind.GPU or workload.phase is not Phase.TRAINING:
        return None
    from leadline.app.own_kernels import own_steps  # noqa: PLC0415 - numpy loads on use
    from leadline.estimators.learned.selection import Domain, Group, group_of  # noqa: PLC0415 - see above

    group = Group(Domain.LANGUAGE, "half", "training")
    if group_of(job.step, device) != group:
        return None
    own = own_steps(device, settings.adapted_dir())
    if own is not None and any(one.group == group for one in own.card.records):
        return None
    return _asked(workload, job, device, nodes, interconnect)


def _asked(
    workload: Workload, job: TracedJob, device: Device, nodes: int, interconnect: str | None
) -> WholeStep | None:
    from leadline.training.shipped_steps import answer, shipped_card, shipped_steps  # noqa: PLC0415 - numpy loads on use

    try:
        told = answer(shipped_steps(), job, workload, device, nodes=nodes, interconnect=interconnect)
    except InvalidInput:
        return None  # other layers, another precision, another maker: kernels and links are priced one by one
    if told.beyond > FARTHEST:
        return None
    card = shipped_card()
    errors = [figures["mape"] for figures in card.errors.values()]
    why = (
        f"priced by the {NAME}: {min(errors):.0f} to {max(errors):.0f}% off on steps of {card.rows} runs that it had "
        "not seen (more GPUs, longer sequences, another generation)"
    )
    return WholeStep(NAME, told.step_s, dict(told.parts_s), (why, *told.sentences))
