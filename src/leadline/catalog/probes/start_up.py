"""Start of a Python with torch: memory and time, before and after a first small step."""

from collections.abc import Sequence

from leadline.core.processes import ProcessRunner

# Runs in the Python of the user, so it needs nothing but torch. Its times are processor seconds: another job on this
# machine does not lengthen them. A child does the work, as only a parent sees the end of a process: to unload torch
# takes a quarter of the whole time.
_PROGRAM = """
import os, sys, time
def resident():
    with open('/proc/self/status') as status:
        return next(int(line.split()[1]) * 1024 for line in status if line.startswith('VmHWM'))
child = os.fork()
if child:
    _, status, used = os.wait4(child, 0)
    print(time.process_time() + used.ru_utime + used.ru_stime)
    sys.exit(status != 0)
bare, begun = resident(), time.process_time()
import torch
imported, took = resident(), time.process_time() - begun
model = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.Flatten(), torch.nn.Linear(288, 8))
with torch.no_grad():
    model(torch.randn(2, 3, 8, 8))
inferred, before = resident(), time.process_time()
import torch._dynamo
compiler, compiler_s = resident() - inferred, time.process_time() - before
optimizer = torch.optim.Adam(model.parameters())
for _ in range(3):
    optimizer.zero_grad()
    model(torch.randn(2, 3, 8, 8)).sum().backward()
    optimizer.step()
print(bare, imported, inferred, resident(), took, compiler, compiler_s)
"""
_TIMEOUT_S = 120.0


def start_up_figures(runner: ProcessRunner, python: Sequence[str]) -> dict[str, float]:
    """Return memory in bytes and processor seconds of a fresh interpreter, which the words ``python`` start.

    ``first_step_s`` is the start and the end of the interpreter, and the first training steps. ``compiler_bytes`` and
    ``compiler_s`` are those parts of the first step that load PyTorch's compiler, which some libraries do before. The
    result is empty if the program fails: without torch or without ``/proc``.
    """
    done = runner([*python, "-c", _PROGRAM], env={"CUDA_VISIBLE_DEVICES": ""}, timeout_s=_TIMEOUT_S)
    words = done.stdout.split()
    if done.returncode != 0 or len(words) != 8:
        return {}
    bare, imported, inferred, stepped, import_s, compiler, compiler_s, whole_s = (float(word) for word in words)
    return {
        "interpreter_bytes": bare,
        "framework_bytes": imported - bare,
        "first_pass_bytes": inferred - imported,
        "first_step_bytes": stepped - imported,
        "compiler_bytes": compiler,
        "compiler_s": compiler_s,
        "framework_import_s": import_s,
        "first_step_s": max(whole_s - import_s, 0.0),
    }
