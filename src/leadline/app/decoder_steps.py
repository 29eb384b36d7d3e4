"""The law of decoders' training steps, where it applies: it learned from whole steps on 8 to 512 GPUs."""

from leadline.app import settings
from leadline.core.errors import InvalidInput
from leadline.core.graph import TracedJob
from leadline.core.hardware import Device, DeviceKind
from leadline.core.workload import Phase, Workload
from leadline.estimators.whitebox import WholeStep

NAME = "law of decoders' steps"


def decoder_step(
    workload: Workload, job: TracedJob, device: Device, nodes: int, interconnect: str | None
) -> WholeStep | None:
    """Return what the law says of a training step; ``None`` where it does not apply, or own steps know better."""
    if device.kind is not DeviceKind.GPU or workload.phase is not Phase.TRAINING:
        return None
    from leadline.estimators.learned.selection import Domain, Group, group_of  # noqa: PLC0415 - numpy loads on use
    from leadline.training.own_steps import own_path  # noqa: PLC0415 - see above

    own = own_path(settings.adapted_dir(), device).is_file() or device.calibration is not None
    if own or group_of(job.step, device) != Group(Domain.LANGUAGE, "half", "training"):
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
    card = shipped_card()
    errors = [figures["mape"] for figures in card.errors.values()]
    why = (
        f"priced by the {NAME}: {min(errors):.0f} to {max(errors):.0f}% off on steps of {card.rows} runs that it had not "
        "seen (more GPUs, longer sequences, another generation)"
    )
    return WholeStep(NAME, told.step_s, dict(told.parts_s), (why, *told.sentences))
