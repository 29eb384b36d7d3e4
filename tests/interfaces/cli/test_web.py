"""``leadline web`` as a process: its address, its token file, its end."""

import os
import re
import signal
import subprocess
import sys

import pytest

httpx = pytest.importorskip("httpx")
pytest.importorskip("uvicorn", reason="needs the [web] extra")


def started(tmp_path, *options):
    environment = {**os.environ, "LEADLINE_DATA_DIR": str(tmp_path / "data")}
    process = subprocess.Popen(
        [sys.executable, "-m", "leadline", "web", "--port", "0", *options], cwd=tmp_path, env=environment, text=True,
        stderr=subprocess.PIPE,
    )  # fmt: skip
    line = process.stderr.readline()
    address = re.search(r"http://\S+", line)
    assert address, line + process.stderr.read()
    return process, address[0]


def test_the_printed_address_opens_the_server_for_its_user_alone_until_it_is_ended(tmp_path):
    process, address = started(tmp_path)
    with httpx.Client(follow_redirects=True) as browser:
        assert browser.get(address).status_code != 401
        base = address.partition("?")[0]
        assert browser.get(f"{base}api/v1/openapi.json").status_code == 200
        assert httpx.get(f"{base}api/v1/openapi.json").status_code == 401
    assert (tmp_path / "data" / "web-token").stat().st_mode & 0o077 == 0
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)
    assert process.returncode in (0, 130)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--no-token", "--host", "0.0.0.0"), "without a token"),  # noqa: S104 - refused
        (("--root-path", "node/1"), "must begin with /"),
        (("--host", "no.such.host.invalid"), "cannot listen"),
    ],
)
def test_settings_that_cannot_be_used_end_in_one_sentence(tmp_path, options, words):
    words_ = [sys.executable, "-m", "leadline", "web", "--port", "0", *options]
    ended = subprocess.run(words_, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=120)
    assert ended.returncode == 2
    assert words in ended.stderr
    assert "Traceback" not in ended.stderr
