from pathlib import Path

import pytest

from leadline.core.errors import InvalidInput, Untraceable
from leadline.graphs.torch.command import parse_command


@pytest.fixture(autouse=True)
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "train.py").write_text("print(1)")
    monkeypatch.chdir(tmp_path)


def test_a_plain_command_is_one_process() -> None:
    command = parse_command(("python3", "-u", "train.py", "--batch-size", "64"))
    assert (command.target, command.argv, command.local_processes) == ("train.py", ("--batch-size", "64"), 1)


def test_a_module_is_run_as_one() -> None:
    command = parse_command(("python3", "-m", "package.train", "x"))
    assert (command.is_module, command.target, command.argv) == (True, "package.train", ("x",))


@pytest.mark.parametrize(
    "launcher",
    [
        ("torchrun", "--nproc_per_node=4", "--nnodes", "2"),
        ("torchrun", "--standalone", "--nproc-per-node", "4", "--nnodes=1:2"),
        ("python3", "-m", "torch.distributed.run", "--nproc_per_node", "4", "--nnodes=2"),
        ("accelerate", "launch", "--multi_gpu", "--num_processes", "8", "--num_machines=2"),  # those of all machines
        ("deepspeed", "--num_gpus", "4", "--num_nodes=2", "--hostfile", "hosts"),
        ("srun", "-N", "2", "--gpus-per-node=4", "--cpus-per-task", "8", "python3", "-u"),
        ("mpirun", "-np", "8", "--nodes", "2", "--gpus-per-task=1", "python3"),
    ],
)
def test_launchers_give_the_number_of_processes(launcher: tuple[str, ...]) -> None:
    command = parse_command((*launcher, "train.py", "--lr", "0.1"))
    assert (command.local_processes, command.nodes, command.target, command.argv) == (4, 2, "train.py", ("--lr", "0.1"))


def test_a_missing_script_is_named() -> None:
    with pytest.raises(InvalidInput, match=r"'absent.py' cannot be traced: there is no such file"):
        parse_command(("python3", "absent.py"))


def test_another_program_is_not_traced() -> None:
    with pytest.raises(Untraceable, match="'bash' is not Python"):
        parse_command(("bash", "train.sh"))


def test_a_number_that_no_launcher_takes_is_named() -> None:
    with pytest.raises(InvalidInput, match="-n is '9999"):
        parse_command(("srun", "-n", "9" * 5000, "python3", "train.py"))


@pytest.mark.parametrize("count", ["four", "0", "-1", "²", "9" * 5000])
def test_a_wrong_number_of_processes_is_named(count) -> None:
    with pytest.raises(InvalidInput, match="--nproc_per_node is '"):
        parse_command(("torchrun", f"--nproc_per_node={count}", "train.py"))
