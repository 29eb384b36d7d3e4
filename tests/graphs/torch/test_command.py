import shlex
import sys
from pathlib import Path

import pytest

from leadline.core.errors import InvalidInput, Untraceable
from leadline.graphs.torch.command import parse_command, read_command


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
    assert (command.local_processes, command.nodes, command.target, command.argv[-2:]) == (
        4,
        2,
        "train.py",
        ("--lr", "0.1"),
    )


def test_a_missing_script_is_named() -> None:
    with pytest.raises(InvalidInput, match=r"'absent.py' cannot be traced: there is no such file"):
        parse_command(("python3", "absent.py"))


def test_another_program_is_not_traced() -> None:
    with pytest.raises(Untraceable, match="'make' is not Python"):
        parse_command(("make", "train"))
    with pytest.raises(Untraceable, match="'apptainer' runs the job in a container"):
        parse_command(("srun", "apptainer", "exec", "torch.sif", "python", "train.py"))


@pytest.mark.parametrize(
    ("words", "launcher", "counts"),
    [
        ("torchrun --nproc_per_node=gpu train.py", "torchrun", (2, 4)),
        ("torchrun --nnodes 2 --nproc-per-node gpu train.py", "torchrun", (1, 2)),
        ("accelerate launch train.py", "accelerate", (2, 4)),
        ("accelerate launch --num_processes 1 train.py", "accelerate", (1, 1)),
        ("accelerate launch --config_file four.yaml train.py", "accelerate", (4, 4)),
        ("deepspeed train.py", "deepspeed", (2, 4)),
        ("fabric run --devices auto train.py", "torchrun", (2, 4)),
        ("fabric run --strategy ddp --devices=3 train.py", "torchrun", (3, 3)),
        ("srun --gpus 2 python3 train.py", "srun", (2, 2)),
        ("CUDA_VISIBLE_DEVICES=0,1,2 torchrun --nproc_per_node=gpu train.py", "torchrun", (3, 3)),
    ],
)
def test_a_launcher_may_start_a_process_for_each_gpu(
    words: str, launcher: str, counts: tuple[int, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    (tmp_path / "four.yaml").write_text("num_machines: 1\nnum_processes: 4\n")
    command = read_command(tuple(words.split()))
    assert (counts, launcher) == (tuple(command.with_gpus(gpus).local_processes for gpus in (2, 4)), command.launcher)


def test_launchers_that_pass_the_rank_as_an_argument_do_so() -> None:
    old = parse_command(("python3", "-m", "torch.distributed.launch", "--nproc_per_node=2", "train.py", "x"))
    assert (old.argv, old.launcher) == (("--local-rank=0", "x"), "torchrun")
    assert read_command(("deepspeed", "train.py", "x")).argv == ("--local_rank=0", "x")


@pytest.mark.parametrize(
    ("words", "prefix"),
    [
        ("nohup nice -n 10 python3 train.py x", ""),
        ("timeout 3h env python3 train.py x", ""),
        ("bash -c 'python3 train.py x'", ""),
        ("conda run -n python --no-capture-output python3 train.py x", "conda run -n python --no-capture-output"),
        ("uv run --python 3.12 train.py x", "uv run --python 3.12"),
        ("poetry run python3 train.py x", "poetry run"),
    ],
)
def test_programs_before_the_interpreter_are_read_away_or_kept_before_it(words: str, prefix: str) -> None:
    command = read_command(tuple(shlex.split(words)))
    assert ("train.py", ("x",), prefix) == (command.target, command.argv, " ".join(command.prefix))


def test_variables_before_a_command_are_set_for_it() -> None:
    for words in ("env -u X A=1 B=b python3 train.py", "A=1 B=b python3 train.py"):
        assert read_command(tuple(words.split())).variables == (("A", "1"), ("B", "b"))


def test_a_number_that_no_launcher_takes_is_named() -> None:
    with pytest.raises(InvalidInput, match="-n is '9999"):
        parse_command(("srun", "-n", "9" * 5000, "python3", "train.py"))


@pytest.mark.parametrize("count", ["four", "0", "-1", "²", "9" * 5000])
def test_a_wrong_number_of_processes_is_named(count) -> None:
    with pytest.raises(InvalidInput, match="--nproc_per_node is '"):
        parse_command(("torchrun", f"--nproc_per_node={count}", "train.py"))


@pytest.mark.parametrize(("switches", "level"), [("-O", "1"), ("-u -OO", "2"), ("-uO", "1")])
def test_assertions_are_off_where_the_command_turns_them_off(switches: str, level: str) -> None:
    command = parse_command(("python", *switches.split(), "train.py", "-O"))
    assert (command.target, command.argv, command.variables) == ("train.py", ("-O",), (("PYTHONOPTIMIZE", level),))


@pytest.mark.parametrize("first", ["#!{python}", "#!/usr/bin/env python3"])
def test_a_program_that_pip_installs_is_a_script_of_its_python(tmp_path: Path, first: str) -> None:
    program = tmp_path / "trainer"
    program.write_text(first.format(python=sys.executable) + "\nimport sys\n", encoding="utf-8")
    program.chmod(0o755)
    command = parse_command((str(program), "fit", "--epochs", "3"))
    assert (command.target, command.argv) == (str(program), ("fit", "--epochs", "3"))
    assert Path(command.python).name.startswith("python")
    program.write_bytes(b"\x7fELF\xff")
    with pytest.raises(Untraceable, match="is not Python"):
        parse_command((str(program), "fit"))
