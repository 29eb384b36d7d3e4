"""Readers of the answers of traces, beside which the user's code may write: of a script, a model and a JAX function."""

import json
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

from benchmarks.trust.mutations import Form
from benchmarks.trust.readers import Reader, texts
from leadline.core.documents import to_json
from leadline.core.graph import LoopFacts, Op, OpGraph, OpKind, Stage, StorageEvent, TensorSpec, TracedJob
from leadline.core.processes import CompletedProcess, ProcessRunner
from leadline.core.workload import InputShape, ModelKind, ModelSource, Phase, Workload
from leadline.graphs.hlo.jax_function import lower_function
from leadline.graphs.torch.trace import trace_command, trace_function
from tests.graphs.hlo import texts as modules

PRODUCT = Op(
    "aten.mm", OpKind.GEMM, Stage.FORWARD, "float32", 128.0, 256.0, 64.0,
    inputs=(TensorSpec((4, 4), "float32"),), outputs=(TensorSpec((4, 4), "float32"),),
    dims={"b": 1, "m": 4, "n": 4, "k": 4},
)  # fmt: skip
SAVED = Op("aten.relu", OpKind.ELEMENTWISE, Stage.BACKWARD, "float32", 16.0, 64.0, 64.0, sources=(0,))
GRAPH = OpGraph((PRODUCT, SAVED), (StorageEvent(0, 1, 64), StorageEvent(1, 1, -64)), 16, 64)
JOB = TracedJob(GRAPH, LoopFacts(batch=4, epochs=2.5, samples=80), notes=("2 epochs",), longer=(GRAPH,))
ANSWER = to_json({"job": JOB, "compiled": True})
LOWERED = json.dumps({"text": modules.MLP, "notes": ["a note"], "jax": "0.7"})
CONFINED = '{"confinement": "this machine offers nothing", "harm": "this machine offers nothing"}'


def _answering(path: Path, name: str) -> ProcessRunner:
    """Return a process runner whose worker leaves a copy of ``path`` as one of its two files."""

    def run(
        argv: Sequence[str], *, env: Mapping[str, str | None] | None = None, cwd: Path | None = None,
        stdin: str | None = None, timeout_s: float | None = None,
    ) -> CompletedProcess:  # fmt: skip
        del env, cwd, stdin, timeout_s
        folder = Path(argv[-1]).parent
        Path(folder, "answer.json").write_text(ANSWER, encoding="utf-8")
        Path(folder, "confinement.json").write_text(CONFINED, encoding="utf-8")
        shutil.copyfile(path, folder / name)
        return CompletedProcess(0, "", "")

    return run


def _of_script(path: Path, name: str = "answer.json") -> object:
    script = path.with_name("train.py")
    script.touch()
    words = (sys.executable, str(script))
    return trace_command(Workload(ModelSource(ModelKind.COMMAND, "train.py", words)), runner=_answering(path, name))


def _of_function(path: Path, *, kind: ModelKind, trace: Callable[..., object]) -> object:
    script = path.with_name("net.py")
    script.touch()
    source = ModelSource(kind, f"{script}:build")
    workload = Workload(source, phase=Phase.INFERENCE, inputs=(InputShape((4, 2)),))
    return trace(workload, runner=_answering(path, "answer.json"))


def _reader(name: str, content: str, read: Callable[[Path], object], weight: int = 1) -> Reader:
    return Reader(name, "graphs", "damaged.json", Form.JSON, texts(content), read, weight, opens=False)


_of_model = partial(_of_function, kind=ModelKind.FUNCTION, trace=trace_function)
_of_jax = partial(_of_function, kind=ModelKind.JAX_FUNCTION, trace=lower_function)
READERS = (
    _reader("answer of a traced script", ANSWER, _of_script, 3),
    _reader("answer of a traced model", ANSWER, _of_model),
    _reader("answer of a JAX function", LOWERED, _of_jax),
    _reader("confinement of a trace", CONFINED, partial(_of_script, name="confinement.json")),
)
