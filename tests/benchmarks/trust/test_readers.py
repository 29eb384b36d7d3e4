"""Every function that reads a file or a text from outside is exercised by a reader of the fuzzer, or says why not.

A function counts as exercised if it runs while the readers read their valid inputs.
"""

import ast
import sys
from functools import cache
from pathlib import Path

import pytest

from benchmarks.trust.fuzz import try_input
from benchmarks.trust.readers import all_readers, put_input

SOURCE = Path(__file__).parents[3] / "src" / "leadline"
DECODERS = {
    "read_input", "read_input_text", "read_text", "read_bytes", "read_members", "read_arrays", "read_array",
    "from_json", "parse_json", "from_toml", "parse_toml", "convert_toml", "loads",
}  # fmt: skip
"""Functions and methods that read files or decode texts; ``decode`` counts for msgspec, ``open`` where it reads."""
SHIPPED = "reads a file that Leadline ships"
KERNEL = "reads what the kernel writes below /proc and /sys"
OWN_PROCESS = "reads what another process of Leadline wrote into a pipe or a file between the two"
NOT_FROM_OUTSIDE = {
    "app/background.py": {"ask_process": OWN_PROCESS, "answer_question": OWN_PROCESS},
    "app/estimate/kept_probes.py": {"_digest": "hashes bytes"},
    "app/machines/systems.py": {
        "probe_system": "copies bytes",
        "_read": "returns the text of a catalog file, which readers of the catalog parse",
        "_unknown_additions": "parses additions that the reader of additions has read before",
    },
    "app/models/question.py": {"is_model": "looks at the first bytes"},
    "app/models/retrain.py": {"_refit_model": "hashes bytes", "_replace": "compares bytes"},
    "app/models/train.py": {"_records": "reads a word that is no file, for the error"},
    "app/pipelines/find.py": {"_noted_files": "returns a path as it is"},
    "app/workloads/options.py": {"": SHIPPED},
    "app/workloads/read.py": {"_is_hlo": "looks at the first bytes"},
    "campaigns/folder.py": {"store_campaign": "copies a campaign file that its reader has read before"},
    "catalog/compare.py": {"_labels": SHIPPED},
    "catalog/read.py": {"_key": SHIPPED},
    "catalog/slurm/text.py": {"_keys": SHIPPED},
    "estimators/parallelism/collectives.py": {"_links": SHIPPED},
    "estimators/parallelism/fabric.py": {"": SHIPPED},
    "estimators/step_time/analytical_kernels.py": {"": SHIPPED},
    "estimators/step_time/kernel_families.py": {"": SHIPPED},
    "execution/plane/failure_patterns.py": {"_patterns": SHIPPED},
    "execution/schedulers/attempt_files.py": {"read_tail": "returns the end of a log as it is"},
    "execution/transport/port.py": {"LocalTransport.read_changed": "returns texts that the reader of outcomes parses"},
    "execution/wrapper/cgroup.py": {"Cgroup.peak_bytes": KERNEL, "Cgroup.oom_kills": KERNEL, "_homes": KERNEL},
    "execution/wrapper/node.py": {"_read": KERNEL},
    "execution/wrapper/outcome.py": {"read_marker": "looks for a word at the start of a file of the site"},
    "files/lock.py": {"lock_holder": "shows the text of a lock"},
    "files/sqlite.py": {"SqliteFile._make_or_check": SHIPPED},
    "graphs/frameworks.py": {
        "_keras_backend": "looks for a word in the user's Keras settings",
        "_own_trees": "parses the sources of a script for their imports",
    },
    "graphs/hf_config/families.py": {"_read_families": SHIPPED},
    "graphs/hlo/costs.py": {"_config_entry": "parses an attribute of HLO, whose reader damages it"},
    "graphs/hlo/jax_function.py": {"": SHIPPED, "_topology_text": SHIPPED},
    "graphs/hlo/module.py": {"": SHIPPED},
    "graphs/onnx/__init__.py": {"": SHIPPED},
    "graphs/torch/command.py": {
        "_accelerate_settings": "looks for two words in accelerate's settings, which accelerate itself reads",
        "_interpreter_of": "looks at the first line of a program, and takes a name that begins with python",
        "_read_shell": "its texts are damaged in tests/graphs/torch/test_shell_script.py",
    },
    "graphs/torch/worker/bootstrap.py": {"main": OWN_PROCESS},
    "graphs/torch/worker/call_filter.py": {"": SHIPPED},
    "graphs/torch/worker/confinement.py": {
        "_children": KERNEL, "_map_users": KERNEL, "_mounts": KERNEL, "_socket_paths": KERNEL,
    },
    "graphs/torch/worker/fake_cuda.py": {"": SHIPPED},
    "graphs/torch/worker/libraries.py": {
        "_installed": "reads the metadata of installed packages, in the user's own process",
        "_editable_projects": "reads the metadata of installed packages, in the user's own process",
    },
    "graphs/torch/worker/ops.py": {"": SHIPPED},
    "graphs/torch/worker/patches.py": {"define_torchvision_ops": SHIPPED},
    "graphs/torch/worker/session.py": {"thread_queued_s": KERNEL, "_read_bytes": KERNEL, "resident_bytes": KERNEL,
        "peak_resident_bytes": KERNEL},
    "graphs/torch/worker/watchdog.py": {"processor_s_of_children": KERNEL},
    "interfaces/chat/cues.py": {"_file": SHIPPED},
    "interfaces/chat/intent.py": {"learned": SHIPPED},
    "interfaces/cli/chat.py": {"chat": "keeps the text of a saved conversation as it is"},
    "interfaces/cli/command.py": {"read_table": SHIPPED},
    "interfaces/cli/completion.py": {"_install": "looks for a line in a start-up file of the shell"},
    "interfaces/cli/export.py": {"_answer": OWN_PROCESS},
    "interfaces/web/chat_routes.py": {"_question": "its bodies are damaged in tests/interfaces/web/test_chat.py"},
    "interfaces/web/tasks.py": {"TaskPool._ask": OWN_PROCESS},
    "interfaces/web/tool_process.py": {"main": OWN_PROCESS},
    "interfaces/cli/main.py": {"help_page": SHIPPED},
    "interfaces/mcp_server.py": {"create_server.call_tool": "parses a document that it has just written"},
    "interfaces/web/api.py": {"_arguments": "reads bodies, which the tests of the REST API damage"},
    "interfaces/web/server.py": {"read_token": "reads the user's own token as a text without a form"},
    "kit/collectives.py": {"sweep_collectives": OWN_PROCESS, "run_group": OWN_PROCESS},
    "kit/memory.py": {"_kernel_bytes": KERNEL},
    "kit/pack.py": {"_contents": SHIPPED},
    "kit/processor.py": {"cpu_name": KERNEL},
    "kit/run.py": {"run_measurements": "opens the rows, which their own reader reads"},
    "kit/specs.py": {"": SHIPPED},
    "kit/worker.py": {"serve": OWN_PROCESS, "Worker._answer": OWN_PROCESS},
    "pipelines/sources.py": {"_is_written": "opens a file to ask for a lease on it"},
    "training/records.py": {"": SHIPPED},
    "training/shipped_files.py": {"read_shipped": SHIPPED, "shipped_live_table": SHIPPED},
    "training/shipped_models.py": {"shipped_accuracy": SHIPPED, "_state": SHIPPED},
    "training/decoder_steps.py": {"shipped_step_model": SHIPPED, "shipped_step_model_errors": SHIPPED},
}  # fmt: skip
"""File → function → why it needs no reader of the fuzzer; the empty name is the module itself."""


def reads(call):
    """Return whether a call reads a file or decodes a text."""
    name = getattr(call.func, "attr", None) or getattr(call.func, "id", None)
    owner = ast.unparse(call.func.value) if isinstance(call.func, ast.Attribute) else ""
    if name == "decode":
        return owner.startswith("msgspec.")
    if name == "open":
        mode = [*call.args, None, None][0 if owner else 1]
        written = isinstance(mode, ast.Constant) and isinstance(mode.value, str) and mode.value[0] in "wax"
        return owner not in ("os", "self.os") and not written
    return name in DECODERS


def functions_of(tree):
    """Yield the qualified names of the functions that read, as the interpreter names them."""

    def visit(node, name):
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                yield from visit(child, f"{name}.{child.name}".removeprefix("."))
                continue
            if isinstance(child, ast.Call) and reads(child):
                yield name
            yield from visit(child, name)

    return set(visit(tree, ""))


@cache
def reading():
    """Return the functions of the package that read, as (file, function)."""
    found = set()
    for path in SOURCE.rglob("*.py"):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        found |= {(path.relative_to(SOURCE).as_posix(), name) for name in functions_of(tree)}
    return found


@pytest.fixture(scope="module")
def exercised(tmp_path_factory):
    """Return the functions that run while each reader reads its valid inputs."""
    ran = set()

    def note(frame, event, _):
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(str(SOURCE)):
            ran.add((code.co_filename.removeprefix(f"{SOURCE}/"), code.co_qualname))

    for number, reader in enumerate(all_readers().values()):
        for place, content in enumerate(reader.corpus()):
            path = put_input(reader, content, tmp_path_factory.mktemp(f"read-{number}-{place}"))
            sys.setprofile(note)
            try:
                assert try_input(reader, path) == ("", "")
            finally:
                sys.setprofile(None)
    return ran


def test_every_function_that_reads_from_outside_is_exercised_by_the_fuzzer(exercised):
    excused = {(file, name) for file, names in NOT_FROM_OUTSIDE.items() for name in names}
    assert sorted(reading() - exercised - excused) == []


def test_every_excuse_is_needed(exercised):
    excused = {(file, name) for file, names in NOT_FROM_OUTSIDE.items() for name in names}
    assert sorted(excused - reading()) == []
    unused = [place for place in excused & exercised if NOT_FROM_OUTSIDE[place[0]][place[1]] == OWN_PROCESS]
    assert unused == []


@pytest.mark.parametrize(
    ("source", "names"),
    [
        ("def f(path):\n    return read_input(path)\n", {"f"}),
        ("class A:\n    def f(self, text):\n        return msgspec.json.decode(text)\n", {"A.f"}),
        ("def f(path):\n    with path.open('rb') as file:\n        pass\n", {"f"}),
        ("def f(path, b):\n    with path.open('w') as file:\n        return b.decode()\n", set()),
    ],
)
def test_a_new_function_that_reads_is_noticed(source, names):
    assert functions_of(ast.parse(source)) == names
