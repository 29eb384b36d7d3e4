"""What ``os.scandir`` gives for a folder whose entries lie in two places."""

import os
from typing import Any, Iterator


class Entry:
    """An entry of a folder under the path the script knows it by."""

    def __init__(self, own: Any, folder: Any) -> None:
        self.own, self.name, self.path = own, own.name, os.path.join(folder, own.name)

    def __fspath__(self) -> Any:
        return self.path

    def __getattr__(self, name: str) -> Any:
        return getattr(self.own, name)


class Entries:
    """What ``os.scandir`` gives: an iterator that is a context manager too."""

    def __init__(self, left: Iterator[Any]) -> None:
        self.left = left

    def __iter__(self) -> Iterator[Any]:
        return self.left

    def __next__(self) -> Any:
        return next(self.left)

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the iteration."""
        self.left = iter(())
