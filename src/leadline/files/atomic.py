"""Write a file atomically: after a crash it has the old or the new content, never a part."""

import os
import tempfile
from pathlib import Path

from leadline.files.private import make_private_folder


def write_atomically(path: Path, content: str | bytes, *, private: bool = False) -> None:
    """Replace the content of a file, which is on disk when this returns; create its folder.

    Text is written as UTF-8. Only its owner can read a ``private`` file and a folder that is created for it; others get
    the usual permissions.

    Raises:
        OSError: the file cannot be written; the old one is unchanged.
    """
    if private:
        make_private_folder(path.parent)
    else:
        path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(descriptor, "wb") as stream:
            stream.write(content.encode() if isinstance(content, str) else content)
            stream.flush()
            os.fsync(stream.fileno())
        if not private:
            Path(temporary).chmod(0o666 & ~_umask())
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def _umask() -> int:
    # The mask can only be read by setting it.
    mask = os.umask(0o077)
    os.umask(mask)
    return mask
