"""Probes of commands, kept so that the next estimate of the same command on this machine uses them."""

import hashlib
import os
import re
import shutil
import socket
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path

from leadline.app import settings
from leadline.core.documents import from_json, to_json
from leadline.core.errors import InvalidInput, excerpt
from leadline.core.estimate import Estimate, Interval
from leadline.core.frozen import Frozen
from leadline.core.progress import Probe
from leadline.core.units import format_duration
from leadline.core.workload import Dataset, ModelKind, Workload
from leadline.files.atomic import write_atomically
from leadline.files.read import is_file, read_input

HASHED_BYTES = 16 << 20
"""Larger files of a command are data: their size and time of change stand for the content."""
RUN_SPREAD = 0.1
"""Half width of the interval of a whole job that was measured once."""
FRAMEWORK_VARIABLES = (
    "CUDA_", "GOMP_", "HF_", "JAX_", "KMP_", "LD_", "MALLOC_", "MKL_", "NCCL_", "NVIDIA_", "OMP_", "OPENBLAS_",
    "PYTHON", "PYTORCH_", "TF_", "TORCH", "XLA_",
)  # fmt: skip
"""Beginnings of the names of variables that frameworks and their libraries read."""
ENVIRONMENT = "the environment"
MOST_FOLDERS = 1000
"""Folders that are searched for modules: a script may lie in a home folder with all that is in it."""
_VARIABLE, SOURCES = re.compile(rb"[A-Z][A-Z0-9_]+"), (".py", ".sh")


class KeptProbe(Frozen):
    """A probe, the time when it was made, and digests of what the command rests on and the probe left unchanged."""

    probe: Probe
    probed_at: str
    digests: dict[str, str]

    @property
    def elapsed_s(self) -> Interval | None:
        """Time of the whole job; ``None`` if the probe does not tell it."""
        elapsed_s = self.probe.forecast.elapsed_s
        if elapsed_s is None or not self.probe.finished:
            return elapsed_s
        whole_s = elapsed_s.point
        return Interval(whole_s, whole_s * (1 - RUN_SPREAD), whole_s * (1 + RUN_SPREAD))

    @property
    def sentence(self) -> str:
        """The probe and its answer, for the user."""
        elapsed_s = self.elapsed_s
        whole = "" if elapsed_s is None else f": the whole job takes {format_duration(elapsed_s.point)}"
        return f"this command was probed on this machine at {self.probed_at[:16].replace('T', ' ')} UTC{whole}"


def keep_probe(probe: Probe, digests: dict[str, str]) -> None:
    """Keep a probe that tells the time of the whole job, in place of an earlier one of the same command.

    ``digests`` are those of the command's files before the probe. Files that it wrote do not identify the command.

    Raises:
        LeadlineError: the data folder is not writable.
    """
    if probe.forecast.elapsed_s is None:
        return
    after = file_digests(probe.command, Path.cwd())
    unchanged = {path: digest for path, digest in digests.items() if after.get(path) == digest}
    kept = KeptProbe(probe, datetime.now(UTC).isoformat(timespec="seconds"), unchanged)
    path = _path(probe.command, Path.cwd())
    with settings.refuse_unwritable(path.parent):
        write_atomically(path, to_json(kept), private=True)


def find_probe(workload: Workload) -> KeptProbe | None:
    """Return the probe of a workload's command; ``None`` without one of the same words.

    Raises:
        InvalidInput: the probe cannot be read, or a file or the environment of the command has changed since.
    """
    is_scripts_own = (workload.epochs, workload.steps, workload.dataset) == (None, None, Dataset())
    if workload.model.kind is not ModelKind.COMMAND or not is_scripts_own or "gpus" not in workload.defaulted:
        return None
    workdir = Path(workload.model.workdir or Path.cwd())
    path = _path(workload.model.argv, workdir)
    if not path.is_file():
        return None
    kept = from_json(read_input(path), KeptProbe, label=str(path))
    present = file_digests(workload.model.argv, workdir)
    if changed := [name for name, digest in kept.digests.items() if present.get(name) != digest]:
        raise InvalidInput(f"{excerpt(changed[0])} has changed since; probe it again")
    return kept


def apply_probe(estimate: Estimate, kept: KeptProbe) -> Estimate:
    """Return the estimate for this machine with the probe's time, and at least its memory."""
    memory, peak = estimate.host_memory_bytes, kept.probe.measured.get("host_memory_bytes")
    if memory is not None and peak is not None:
        point, low, high = (max(bound, peak.value) for bound in (memory.point, memory.low, memory.high))
        memory = Interval(point, low, high, memory.level)
    basis = replace(estimate.basis, reasons=(kept.sentence, *kept.probe.forecast.assumptions, *estimate.basis.reasons))
    return replace(
        estimate,
        estimator=f"{estimate.estimator}, probe",
        basis=basis,
        elapsed_s=kept.elapsed_s,
        host_memory_bytes=memory,
        unknown={name: reason for name, reason in estimate.unknown.items() if name != "elapsed_s"},
    )


def file_digests(words: Sequence[str], workdir: Path) -> dict[str, str]:
    """Return digests of what a command rests on: the files that it names, modules beside them, and the environment.

    The modules are those below the folder of a script, for ``-m`` below the working folder, and below the folders in it
    that ``PYTHONPATH`` names. The environment is the installed packages with their versions, and the variables that
    frameworks read or one of the files mentions.
    """
    # `python -m package.module` names a file, too.
    named = [workdir / name for word in words for name in (word, f"{word.replace('.', os.sep)}.py")]
    folders = {path.parent for path in named if path.suffix == ".py" and is_file(path)}
    import_path = [workdir / entry for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry]
    import_path += [workdir] if "-m" in words else []
    folders |= {folder for folder in import_path if folder.is_relative_to(workdir)}
    mentioned: set[bytes] = set()
    modules = [module for folder in sorted(folders) for module in nearby_modules(folder)]
    digests = {str(path): _digest(path, mentioned) for path in dict.fromkeys((*named, *modules))}
    digests[ENVIRONMENT] = _environment_digest(words[0], mentioned)
    return {path: digest for path, digest in digests.items() if digest}


def nearby_modules(folder: Path) -> list[Path]:
    """Return the Python files in a folder and below it, without hidden folders and those of installed packages."""
    modules = []
    for here, folders, files in islice(os.walk(folder), MOST_FOLDERS):
        if "pyvenv.cfg" in files or "conda-meta" in folders:
            folders.clear()
        folders[:] = sorted(name for name in folders if name != "site-packages" and not name.startswith((".", "__")))
        modules += [Path(here, name) for name in sorted(files) if name.endswith(".py")]
    return modules


def _digest(path: Path, mentioned: set[bytes]) -> str:
    """Return the digest of a file, empty if it is none, and add the names of variables that it may read."""
    try:
        if not path.is_file():
            return ""
        status = path.stat()
        if status.st_size > HASHED_BYTES:
            return f"{status.st_size} {status.st_mtime_ns}"
        content = path.read_bytes()
        mentioned.update(_VARIABLE.findall(content) if path.suffix in SOURCES else ())
        return hashlib.sha256(content).hexdigest()
    except (OSError, ValueError):  # an argument that is no path, or a file that only the job may read
        return ""


def _environment_digest(program: str, mentioned: set[bytes]) -> str:
    """Return the digest of the packages beside an interpreter, and of the variables that a command depends on."""
    interpreter = Path(shutil.which(program) or program)
    packages = interpreter.parent.parent.glob("lib/python3*/*-packages/*.dist-info")
    names = {name for name in os.environ if name.startswith(FRAMEWORK_VARIABLES) or os.fsencode(name) in mentioned}
    variables = (f"{name}={os.environ[name]}" for name in sorted(names))
    parts = (str(interpreter), *sorted(path.name for path in packages), *variables)
    return hashlib.sha256("\0".join(parts).encode(errors="surrogateescape")).hexdigest()


def _path(words: Sequence[str], workdir: Path) -> Path:
    """Return the file of a command's probe, named by the words, the folder and the machine."""
    place = "\0".join((socket.gethostname(), str(workdir.resolve()), *words))
    name = hashlib.sha256(place.encode(errors="surrogateescape")).hexdigest()[:32]
    return settings.data_dir() / "probes" / f"{name}.json"
