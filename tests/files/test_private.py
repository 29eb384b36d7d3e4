"""Data that only their owner can read."""

import os
import stat

from leadline.files.private import tighten


def mode(path):
    return stat.S_IMODE(path.stat().st_mode)


def test_files_and_folders_lose_the_rights_of_others_and_devices_keep_them(tmp_path):
    file, folder, pipe, link = (tmp_path / name for name in ("file", "folder", "pipe", "link"))
    file.touch()
    folder.mkdir()
    os.mkfifo(pipe)
    link.symlink_to(pipe)
    for path in (file, folder, pipe):
        path.chmod(0o777)
    for path in (file, folder, pipe, link, tmp_path / "absent"):
        tighten(path)
    assert [mode(path) for path in (file, folder, pipe)] == [0o700, 0o700, 0o777]
