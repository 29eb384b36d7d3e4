from pathlib import Path

import pytest

from leadline.core.errors import LeadlineError, Untraceable
from leadline.graphs.torch.command import parse_command, read_command
from leadline.graphs.torch.shell_script import read_script

SCRIPT = """#!/bin/bash
#SBATCH --gres=gpu:4
set -euo pipefail
module load cuda; source ~/venv/bin/activate
export OMP_NUM_THREADS=8 SEED=1
DATA=/data/imagenet   # the data
EXTRA="--amp --lr 0.1"
RUN="run-$(date +%s)"
mkdir -p logs/$RUN
cd src && torchrun --nproc_per_node=4 \\
    train.py --data "$DATA/train" --batch ${BATCH:-64} --name 'a b' $EXTRA "$@" 7 > log.txt 2>&1 | tee out.log
echo "done"
"""


def test_the_one_python_command_of_a_script_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "src").mkdir()
    (tmp_path / "src/train.py").write_text("print(1)")
    (tmp_path / "train.sh").write_text(SCRIPT)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("BATCH", raising=False)
    command = parse_command(("sh", "train.sh", "--epochs", "3"))
    expected = "--data /data/imagenet/train --batch 64 --name|a b|--amp --lr 0.1 --epochs 3 7"
    assert command.argv == tuple(
        word for part in expected.split("|") for word in ([part] if part == "a b" else part.split())
    )
    assert (command.folder, command.local_processes, command.launcher) == ("src", 4, "torchrun")
    assert command.variables == (("OMP_NUM_THREADS", "8"), ("SEED", "1"))
    assert command.argv == read_command(("./train.sh", "--epochs", "3")).argv


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("echo a\nif [ -f x ]; then\npython a.py\nfi", "line 2 of run.sh decides at run time what it runs"),
        ("for s in 1 2; do python a.py; done", "line 1 of run.sh decides at run time"),
        (
            "python a.py\\\n  --x\npython b.py",
            "runs 2 commands .lines 1, 3.: give the one that trains after --, as in -- python a",
        ),
        ("N=$(nproc)\npython a.py --threads $N", "line 2 of run.sh uses a value that only a shell can compute"),
        ("ARGS=(a b)\npython a.py", "line 1 of run.sh is more than a simple command"),
        ("python - <<EOF\nprint(1)\nEOF", "line 1 of run.sh feeds text to a command"),
        ("echo 'a\nb'", "line 1 of run.sh is more than a simple command"),
        ("echo done", "run.sh calls no Python"),
    ],
)
def test_what_only_a_shell_can_decide_is_refused_with_its_line(text: str, reason: str) -> None:
    with pytest.raises(Untraceable, match=reason):
        read_script(text, "run.sh")


def test_a_damaged_script_is_read_or_refused() -> None:
    damaged = [SCRIPT[:end] for end in range(0, len(SCRIPT), 3)]
    damaged += [
        SCRIPT[:place] + mark + SCRIPT[place + 1 :] for place in range(0, len(SCRIPT), 7) for mark in "'\"$({`\\\0"
    ]
    refused = 0
    for text in damaged:
        try:
            read_script(text, "run.sh")
        except LeadlineError:
            refused += 1
    assert 0 < refused < len(damaged)
