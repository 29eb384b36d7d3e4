"""A system that cannot be reached: the commands say so at once."""

import re
import shutil
import time

import pytest

from leadline.app import settings
from leadline.interfaces.cli.main import main

NOTE = r"note: lab: unreachable since [\w :]+: nowhere\.invalid cannot be reached by ssh \(.+\), next try when the"


@pytest.mark.usefixtures("data_folder")
def test_submit_and_jobs_show_the_reason_at_once(capsys):
    if shutil.which("ssh") is None:
        pytest.skip("there is no ssh here")
    settings.data_dir().mkdir(exist_ok=True)
    (settings.data_dir() / "reach.toml").write_text(
        '[systems.lab]\nhost = "nowhere.invalid"\nfolder = "/scratch/me"\nscheduler = "slurm"\n'
    )
    began_s = time.monotonic()
    words = ["submit", "--on", "lab:gpu", "-y", "--time", "1m", "--cores", "1", "--memory", "1G"]
    assert main([*words, "--", "true"]) == 0
    assert time.monotonic() - began_s < 20.0
    printed = capsys.readouterr()
    assert re.search(NOTE, printed.err), printed.err
    assert main(["jobs"]) == 0
    assert re.search(NOTE, capsys.readouterr().err)
    assert main(["explain", "true"]) == 0
    assert "lab does not answer: nowhere.invalid cannot be reached" in " ".join(capsys.readouterr().out.split())
