"""Trace the code of a small training script, in a process forked from one that has imported PyTorch."""

import shlex
import sys
import textwrap
from pathlib import Path

from leadline.core.graph import TracedJob
from leadline.core.workload import ModelKind, ModelSource, Workload
from leadline.graphs.torch.trace import trace_command
from tests.support.forked_python import run_forked


def trace_code(folder: Path, code: str, arguments: str = "") -> TracedJob:
    """Write the code to ``train.py`` in a folder, and trace ``python train.py`` with these arguments there."""
    script = folder / "train.py"
    script.write_text(textwrap.dedent(code), encoding="utf-8")
    words = (sys.executable, str(script), *shlex.split(arguments))
    return trace_command(
        Workload(ModelSource(ModelKind.COMMAND, shlex.join(words), words)), runner=run_forked, cwd=folder
    )
