"""The composition root: the only place that constructs the real adapters."""

from functools import cache, lru_cache, partial
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec.structs import replace

from leadline.app import settings
from leadline.catalog.read import LiveCatalog, TomlCatalog
from leadline.core.errors import MissingExtra
from leadline.core.estimate import EstimatorChoice
from leadline.execution.processes import run_process
from leadline.execution.transport.environment import run_without_settings
from leadline.files.read import exists

if TYPE_CHECKING:
    from collections.abc import Callable

    from leadline.app.estimate.estimate import Toolbox
    from leadline.core.graph import TracedJob
    from leadline.core.ports import Catalog
    from leadline.core.processes import ProcessRunner
    from leadline.core.workload import Workload
    from leadline.training.model import ApplicationModel

KEPT_TRACES = 8
"""Traces of configuration files that a process remembers, for a server's what-if questions."""


_catalogs: "dict[Path, Catalog]" = {}
"""Folder of the user's own devices and systems → the catalog with them."""


def user_catalog() -> "Catalog":
    """Return the shipped catalog with the user's own folder, parsed once."""
    folder = settings.catalog_dir()
    if folder not in _catalogs:
        _catalogs[folder] = TomlCatalog(folder, settings.cache_dir())
    return _catalogs[folder]


def live_catalog(report: "Callable[[str], None]") -> "Catalog":
    """Return the same catalog for a process that runs for long: changed files are read again.

    ``report`` is called with the reason if they cannot be.
    """
    return LiveCatalog(settings.catalog_dir(), settings.cache_dir(), report=report)


def keep_catalog_live(report: "Callable[[str], None]") -> None:
    """Use a ``live_catalog`` for all verbs of this process from now on."""
    _catalogs[settings.catalog_dir()] = live_catalog(report)
    toolbox.cache_clear()


def reload_catalog() -> None:
    """Forget the parsed catalog, after a file of it has changed."""
    _catalogs.clear()
    toolbox.cache_clear()


@cache
def toolbox(choice: EstimatorChoice | None = None) -> "Toolbox":
    """Return the adapters of the verbs.

    A ``choice`` selects the estimator of every step, instead of the most accurate one.
    """
    # Commands that only list jobs or systems must not pay for importing the estimators.
    from leadline.app.estimate.estimate import Toolbox  # noqa: PLC0415 - see above
    from leadline.app.estimate.step_estimators import (  # noqa: PLC0415 - see above
        predict_decoder_step,
        select_engine_kernels,
        select_kernels,
    )
    from leadline.core.workload import ModelKind  # noqa: PLC0415 - see above
    from leadline.estimators.memory.host import host_memory  # noqa: PLC0415 - see above
    from leadline.estimators.white_box import WhiteBox  # noqa: PLC0415 - see above

    estimator = WhiteBox(
        host_memory=host_memory,
        kernels=select_kernels,
        predict_whole_step=predict_decoder_step,
        engine_kernels=select_engine_kernels,
    )
    if choice is not None:
        estimator = WhiteBox(host_memory=host_memory, kernels=partial(select_kernels, choice=choice))
    return Toolbox(
        catalog=user_catalog(),
        sources={
            ModelKind.HF_CONFIG: _trace_config,
            ModelKind.ONNX: _on_call("onnx.read", "read_onnx"),
            ModelKind.HLO: _on_call("hlo.read", "read_hlo"),
            ModelKind.JAX_FUNCTION: _on_call("hlo.jax_function", "lower_function", starts_processes=True),
            ModelKind.FUNCTION: _on_call("torch.trace", "trace_function", starts_processes=True),
            ModelKind.COMMAND: _trace_command,
        },
        estimator=estimator,
        compilers={ModelKind.JAX_FUNCTION: _on_call("hlo.jax_function", "compile_function", starts_processes=True)},
    )


def process_runner() -> "ProcessRunner":
    """Return the function that runs processes without the user's settings of schedulers."""
    return run_without_settings


def trained_model(path: Path) -> "ApplicationModel":
    """Return the model that ``leadline train`` wrote to a file, or to the user's models under that name.

    Raises:
        InvalidInput: the file is missing, damaged, not a model, or of another version.
        MissingExtra: numpy is not installed.
    """
    if find_spec("numpy") is None:
        raise MissingExtra("a trained model", "train")
    from leadline.training.model import load_model  # noqa: PLC0415 - numpy loads on use

    kept = settings.data_dir() / "models" / f"{path}.npz"
    return load_model(kept if path.parent == Path() and not exists(path) and exists(kept) else path)


def _on_call(module: str, name: str, *, starts_processes: bool = False) -> "Callable[..., TracedJob]":
    """Return a front-end in ``leadline.graphs`` that is imported when it is called."""

    def trace(*arguments: object, **settings: object) -> "TracedJob":
        front_end = getattr(import_module(f"leadline.graphs.{module}"), name)
        job: TracedJob = front_end(*arguments, **settings, **({"runner": run_process} if starts_processes else {}))
        return job

    return trace


def _trace_config(workload: "Workload", *, device_type: str = "cuda") -> "TracedJob":
    """Trace a configuration file; what-if questions that leave the step as it is share one trace."""
    from leadline.core.workload import Dataset, Parallelism  # noqa: PLC0415 - loaded on use
    from leadline.graphs.hf_config.quantization import FILES_BESIDE  # noqa: PLC0415 - loaded on use

    path = Path(workload.model.reference)
    config = path / "config.json" if path.is_dir() else path
    files = [file.stat() for file in (config, *map(config.with_name, FILES_BESIDE)) if file.is_file()]
    step = replace(
        workload, name="", defaulted=(), dataset=Dataset(), epochs=None, steps=None, gpus=1, needs_gpus=False,
        parallelism=Parallelism(fusion=workload.parallelism.fusion), network=None, power_limit_w=None,
    )  # fmt: skip
    return _expand_config(step, device_type, tuple((file.st_mtime_ns, file.st_size) for file in files))


@lru_cache(maxsize=KEPT_TRACES)
def _expand_config(workload: "Workload", device_type: str, _: tuple[tuple[int, int], ...]) -> "TracedJob":
    """Trace a configuration file again only if one of its files has changed, by their times and sizes."""
    from leadline.graphs.hf_config.expand import expand  # noqa: PLC0415 - loaded on use

    return expand(workload, device_type=device_type)


def _trace_command(workload: "Workload", *, device_type: str = "cuda") -> "TracedJob":
    from leadline.graphs.scripts import trace_script  # noqa: PLC0415 - loaded on use

    workdir = workload.model.workdir
    cwd = Path(workdir) if workdir else None
    return trace_script(workload, runner=run_process, device_type=device_type, cwd=cwd, start_up=_start_up)


@cache
def _start_up(python: tuple[str, ...]) -> dict[str, float]:
    from leadline.catalog.probes.start_up import start_up_figures  # noqa: PLC0415 - loaded on use

    return start_up_figures(run_process, python)
