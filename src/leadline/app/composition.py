"""The composition root: the only place that constructs the real adapters."""

from functools import cache, partial
from pathlib import Path

from leadline.app import settings
from leadline.app.estimate.estimate import Toolbox
from leadline.app.estimate.step_estimators import predict_decoder_step, select_kernels
from leadline.catalog.read import TomlCatalog
from leadline.core.errors import MissingExtra
from leadline.core.estimate import EstimatorChoice
from leadline.core.graph import TracedJob
from leadline.core.hardware import Device
from leadline.core.processes import ProcessRunner
from leadline.core.trained_model import TrainedModel
from leadline.core.workload import ModelKind, Workload
from leadline.estimators.memory.host import host_memory
from leadline.estimators.white_box import WhiteBox
from leadline.execution.processes import run_process


@cache
def toolbox(choice: EstimatorChoice | None = None) -> Toolbox:
    """Return the adapters of the verbs, over the shipped catalog and the user's own folder.

    A ``choice`` selects the estimator of every step, instead of the most accurate one.
    """
    estimator = WhiteBox(host_memory=host_memory, kernels=select_kernels, predict_whole_step=predict_decoder_step)
    if choice is not None:
        estimator = WhiteBox(host_memory=host_memory, kernels=partial(select_kernels, choice=choice))
    return Toolbox(
        catalog=TomlCatalog(settings.catalog_dir()),
        sources={
            ModelKind.HF_CONFIG: _expand,
            ModelKind.ONNX: _read_onnx,
            ModelKind.HLO: _read_hlo,
            ModelKind.JAX_FUNCTION: _lower_function,
            ModelKind.FUNCTION: _trace_function,
            ModelKind.COMMAND: _trace_command,
        },
        estimator=estimator,
        compilers={ModelKind.JAX_FUNCTION: _compile_function},
    )


def process_runner() -> ProcessRunner:
    """Return the function that runs processes."""
    return run_process


def trained_model(path: Path) -> TrainedModel:
    """Return the model that ``leadline train`` wrote to a file.

    Raises:
        InvalidInput: the file is missing, damaged, not a model, or of another version.
        MissingExtra: numpy is not installed.
    """
    try:
        from leadline.training.model import load_model  # noqa: PLC0415 - numpy loads when a model is asked
    except ModuleNotFoundError as error:
        if error.name != "numpy":
            raise
        raise MissingExtra("a trained model", "train") from error
    return load_model(path)


def _expand(workload: Workload, *, device_type: str = "cuda") -> TracedJob:
    from leadline.graphs.hf_config.expand import expand  # noqa: PLC0415 - a front-end loads when it is used

    return expand(workload, device_type=device_type)


def _read_onnx(workload: Workload, *, device_type: str = "cuda") -> TracedJob:
    from leadline.graphs.onnx.read import read_onnx  # noqa: PLC0415 - a front-end loads when it is used

    return read_onnx(workload, device_type=device_type)


def _read_hlo(workload: Workload, *, device_type: str = "cuda") -> TracedJob:
    from leadline.graphs.hlo.read import read_hlo  # noqa: PLC0415 - a front-end loads when it is used

    return read_hlo(workload, device_type=device_type)


def _lower_function(workload: Workload, *, device_type: str = "cuda") -> TracedJob:
    from leadline.graphs.hlo.jax_function import lower_function  # noqa: PLC0415 - a front-end loads when it is used

    return lower_function(workload, runner=run_process, device_type=device_type)


def _compile_function(workload: Workload, device: Device) -> TracedJob:
    from leadline.graphs.hlo.jax_function import compile_function  # noqa: PLC0415 - a front-end loads when it is used

    return compile_function(workload, device, runner=run_process)


def _trace_function(workload: Workload, *, device_type: str = "cuda") -> TracedJob:
    from leadline.graphs.torch.trace import trace_function  # noqa: PLC0415 - a front-end loads when it is used

    return trace_function(workload, runner=run_process, device_type=device_type)


def _trace_command(workload: Workload, *, device_type: str = "cuda") -> TracedJob:
    from leadline.graphs.torch.trace import trace_command  # noqa: PLC0415 - a front-end loads when it is used

    workdir = workload.model.workdir
    cwd = Path(workdir) if workdir else None
    return trace_command(workload, runner=run_process, device_type=device_type, cwd=cwd)
