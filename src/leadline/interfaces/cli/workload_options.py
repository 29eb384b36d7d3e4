"""The workload arguments that ``estimate``, ``recommend`` and ``systems check`` share."""

from typing import Annotated

import typer

from leadline.app.workloads import WorkloadOptions, read_workload
from leadline.core.workload import Workload

Subject = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="WORKLOAD | -- COMMAND…",
        help="config.json, model.onnx, file.py:function, job.toml, or your own command after --.",
        show_default=False,
    ),
]
Batch = Annotated[int | None, typer.Option(help="Samples per GPU and step.", show_default=False)]
Seq = Annotated[int | None, typer.Option(help="Tokens per sample.", show_default=False)]
Input = Annotated[
    list[str] | None,
    typer.Option(help="Input shape, batch first: 64x3x224x224[:dtype]; repeat for more inputs.", show_default=False),
]
PrecisionOption = Annotated[
    str | None, typer.Option(help="fp32, tf32, fp16, bf16, amp-fp16 or amp-bf16.", show_default=False)
]
OptimizerOption = Annotated[
    str | None, typer.Option(help="sgd, momentum, adam, adamw, adagrad, rmsprop or lion.", show_default=False)
]
Epochs = Annotated[float | None, typer.Option(help="Passes over the data set.", show_default=False)]
Steps = Annotated[int | None, typer.Option(help="Optimizer steps of the whole job.", show_default=False)]
Samples = Annotated[int | None, typer.Option(help="Samples in the data set.", show_default=False)]
BytesPerSample = Annotated[str | None, typer.Option(help="Stored size of a sample, such as 110KB.", show_default=False)]
Workers = Annotated[int | None, typer.Option(help="Data loader processes.", show_default=False)]
Gpus = Annotated[int | None, typer.Option(help="GPUs of the job.", show_default=False)]
PhaseOption = Annotated[str | None, typer.Option(help="training or inference.", show_default=False)]
Accumulate = Annotated[int | None, typer.Option(help="Micro-steps per optimizer step.", show_default=False)]
Checkpointing = Annotated[
    bool | None, typer.Option("--checkpointing", help="Recompute activations in backward.", show_default=False)
]
On = Annotated[
    list[str] | None,
    typer.Option(metavar="SYSTEM[:PARTITION]|DEVICE", help="Where; repeat for more places.", show_default=False),
]
All = Annotated[bool, typer.Option("--all", help="Show every place, and what was left out.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document instead of text.")]


def workload_from(
    subject: list[str] | None,
    *,
    batch: int | None = None,
    seq: int | None = None,
    input: list[str] | None = None,  # noqa: A002 - named as its option
    precision: str | None = None,
    optimizer: str | None = None,
    epochs: float | None = None,
    steps: int | None = None,
    samples: int | None = None,
    bytes_per_sample: str | None = None,
    workers: int | None = None,
    gpus: int | None = None,
    phase: str | None = None,
    accumulate: int | None = None,
    checkpointing: bool | None = None,
) -> Workload:
    """Read the workload that the shared arguments name; raises ``InvalidInput``."""
    return read_workload(
        subject or [],
        WorkloadOptions(
            batch=batch,
            seq=seq,
            input=input or None,
            precision=precision,
            optimizer=optimizer,
            epochs=epochs,
            steps=steps,
            samples=samples,
            bytes_per_sample=bytes_per_sample,
            workers=workers,
            gpus=gpus,
            phase=phase,
            accumulate=accumulate,
            checkpointing=checkpointing,
        ),
    )
