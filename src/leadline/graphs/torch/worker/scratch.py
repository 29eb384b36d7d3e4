"""What ``os.scandir`` gives for a folder whose entries lie in two places."""

import builtins
import errno
import io
import os
import pathlib
import shutil
import stat
import sys
import tempfile
from types import SimpleNamespace
from typing import Any, Callable, Dict, Iterator, List, Optional, Set


class OverlayEntry:
    """An entry of a folder under the path the script knows it by."""

    def __init__(self, own: Any, folder: Any) -> None:
        self.own, self.name, self.path = own, own.name, os.path.join(folder, own.name)

    def __fspath__(self) -> Any:
        return self.path

    def __getattr__(self, name: str) -> Any:
        return getattr(self.own, name)


class OverlayEntries:
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


READERS = ("stat", "access", "statvfs", "getxattr", "listxattr")
CHANGERS = ("chmod", "chown", "lchown", "utime", "truncate", "setxattr", "removexattr")
OTHERS = (
    "open", "mkdir", "rmdir", "unlink", "remove", "rename", "replace", "link", "symlink", "readlink", "lstat",
    "scandir", "listdir", "chdir", "getcwd",
)  # fmt: skip
CACHES = ("XDG_CACHE_HOME", "HF_HOME", "HF_DATASETS_CACHE", "TORCH_HOME", "TRITON_CACHE_DIR")
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
LARGE_BYTES = 1 << 30
"""A file beyond this that is opened to be changed is not copied: zeros of its length are."""

_scratch_trees: List["ScratchTree"] = []


def redirect_writes(folder: str) -> None:
    """Redirect all writing by Python code of this process to ``folder``; files opened before stay as they are."""
    temporary = os.path.join(folder, "tmp")
    os.makedirs(temporary)
    tempfile.tempdir = os.environ["TMPDIR"] = temporary
    tree = ScratchTree(folder)
    _scratch_trees[:] = [tree]
    accessor: Any = getattr(pathlib, "_NormalAccessor", None)  # what pathlib calls before Python 3.10
    for name, function in {**tree.functions(), "open": tree.open_descriptor}.items():
        setattr(os, name, function)
        if hasattr(accessor, name):
            setattr(accessor, name, staticmethod(function))
    shutil._use_fd_functions = False  # type: ignore[attr-defined]
    own = builtins.open
    builtins.open = io.open = tree.open
    for module in list(sys.modules.values()):
        for name, value in list(getattr(module, "__dict__", {}).items()):
            if value is own and module.__name__ != "_io":
                setattr(module, name, tree.open)


def is_scratch(path: Any) -> bool:
    """Whether a file was written during this trace."""
    return any(tree.written(path) for tree in _scratch_trees)


class ScratchTree:
    """The files as the script sees them: its own writes over the files that are there."""

    def __init__(self, folder: str) -> None:
        self.top = os.path.join(os.path.realpath(folder), "tree")
        os.mkdir(self.top)
        caches = [os.environ.get(name) for name in CACHES]
        kept = [os.path.expanduser("~/.cache"), *filter(None, caches), os.path.realpath(folder), folder]
        self.kept = tuple(os.path.join(os.path.abspath(one), "") for one in (*kept, "/dev", "/proc", "/sys"))
        self.gone: Set[str] = set()
        self.links: Dict[str, str] = {}
        self.here, self.away = os.getcwd(), False
        self.own = SimpleNamespace(
            **{name: getattr(os, name) for name in OTHERS + READERS + CHANGERS if hasattr(os, name)}
        )
        self.own_open = io.open

    def functions(self) -> Dict[str, Any]:
        """Return what takes the place of functions of ``os``, by name."""
        found: Dict[str, Any] = {name: self._unless_by_descriptor(name) for name in OTHERS if hasattr(self, name)}
        found["remove"], found["replace"], found["getcwd"] = found["unlink"], found["rename"], lambda: self.here
        found["lstat"] = self._over(self.own.lstat, lambda path: self.reading(path, follow=False))
        found.update({name: self._over(getattr(self.own, name), self.reading) for name in READERS if hasattr(os, name)})
        found.update(
            {name: self._over(getattr(self.own, name), self.changing) for name in CHANGERS if hasattr(os, name)}
        )
        return found

    def _over(self, own: Any, resolve: Callable[[Any], Any]) -> Any:
        def function(path: Any, *args: Any, **kwargs: Any) -> Any:
            return own(path if kwargs.get("dir_fd") is not None else resolve(path), *args, **kwargs)

        return function

    def _unless_by_descriptor(self, name: str) -> Any:
        own, mine = getattr(self.own, name), getattr(self, name)

        def function(*args: Any, **kwargs: Any) -> Any:
            if any(value is not None for key, value in kwargs.items() if key.endswith("dir_fd")):
                return own(*args, **kwargs)
            return mine(*args, **{key: value for key, value in kwargs.items() if not key.endswith("dir_fd")})

        return function

    def meant(self, path: Any, *, follow: bool = True) -> Optional[str]:
        """Return the path that is meant, or ``None`` where nothing is redirected (descriptors, devices, caches)."""
        if isinstance(path, int) or not path:
            return None
        full = os.path.normpath(os.path.join(self.here, os.fsdecode(path)))
        if self.links:
            full = self._followed(full, follow=follow)
        return None if (full + os.sep).startswith(self.kept) else full

    def _followed(self, full: str, *, follow: bool) -> str:
        for _ in range(40):
            for link, target in self.links.items():
                if (follow and full == link) or full.startswith(link + os.sep):
                    full = os.path.normpath(os.path.join(os.path.dirname(link), target) + full[len(link) :])
                    break
            else:
                return full
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), full)

    def written(self, path: Any) -> bool:
        """Whether a path was made by the script during the trace."""
        full = self.meant(path)
        return full is not None and self._there(self.top + full)

    def reading(self, path: Any, *, follow: bool = True) -> Any:
        """Return the path to read: the script's own file, or the one that is there.

        Raises:
            FileNotFoundError: the script has removed it.
        """
        full = self.meant(path, follow=follow)
        if full is None:
            return path
        if self._there(self.top + full):
            return self.top + full
        if self.gone and self._is_gone(full):
            raise _error(errno.ENOENT, path)
        return full if self.away or self.links else path

    def writing(self, path: Any) -> Any:
        """Return the path to write to, in a folder that exists.

        Raises:
            OSError: the folder does not exist or must not be written to, as the script would find it.
        """
        full = self.meant(path)
        if full is None:
            return path
        parent = os.path.dirname(full)
        try:
            seen = self.reading(parent)
            below = self.own.stat(seen)
        except OSError:
            raise _error(errno.ENOENT, path) from None
        if not stat.S_ISDIR(below.st_mode):
            raise _error(errno.ENOTDIR, path)
        judged = full if self._exists(full) else parent
        if not self.own.access(self.reading(judged), os.W_OK):
            raise _error(errno.EACCES, path)
        self._make_folders(self.top + parent)
        return self.top + full

    def changing(self, path: Any) -> Any:
        """Return a path to change in place, whose content was copied before."""
        source, target = self.reading(path), self.writing(path)
        if source != target and self.meant(path) is not None:
            if stat.S_ISDIR(self.own.stat(source).st_mode):
                self._make_folders(target)
            else:
                self._copy(source, target)
        return target

    def open(self, file: Any, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
        """Do what the built-in ``open`` does."""
        if isinstance(file, int) or kwargs.get("opener") is not None:
            return self.own_open(file, mode, *args, **kwargs)
        if not set(mode) & set("wax+"):
            return self.own_open(self.reading(file), mode, *args, **kwargs)
        target = self._target(file, kept=not set(mode) & set("wx"), made="r" not in mode, new="x" in mode)
        return self.own_open(target, mode, *args, **kwargs)

    def open_descriptor(self, path: Any, flags: int, mode: int = 0o777, *, dir_fd: Optional[int] = None) -> int:
        """Do what ``os.open`` does."""
        unnamed = getattr(os, "O_TMPFILE", 0)
        if dir_fd is not None or not flags & WRITING or (unnamed and flags & unnamed == unnamed):
            return int(self.own.open(path if dir_fd is not None else self.reading(path), flags, mode, dir_fd=dir_fd))
        made, new = bool(flags & os.O_CREAT), bool(flags & os.O_EXCL)
        return int(self.own.open(self._target(path, kept=not flags & os.O_TRUNC, made=made, new=new), flags, mode))

    def _target(self, path: Any, *, kept: bool, made: bool, new: bool) -> Any:
        """Return where to write; ``kept``: with the content so far; ``made``: a file that is missing is made."""
        if self.meant(path) is None:
            return path
        if self._exists(path):
            if new:
                raise _error(errno.EEXIST, path)
            if stat.S_ISDIR(self.own.stat(self.reading(path)).st_mode):
                raise _error(errno.EISDIR, path)
            target = self.changing(path) if kept else self.writing(path)
        else:
            if not made:
                raise _error(errno.ENOENT, path)
            target = self.writing(path)
        self.gone.discard(self.meant(path) or "")
        return target

    def mkdir(self, path: Any, mode: int = 0o777) -> None:
        """Do what ``os.mkdir`` does; a folder made anew still hides what one of its name held before."""
        if self._exists(path):
            raise _error(errno.EEXIST, path)
        self.own.mkdir(self.writing(path), mode)

    def rmdir(self, path: Any) -> None:
        """Do what ``os.rmdir`` does."""
        if self.listdir(path):
            raise _error(errno.ENOTEMPTY, path)
        self._forget(path, self.own.rmdir)

    def unlink(self, path: Any) -> None:
        """Do what ``os.unlink`` does."""
        if stat.S_ISDIR(self.own.lstat(self.reading(path, follow=False)).st_mode):
            raise _error(errno.EISDIR, path)
        self._forget(path, self.own.unlink)

    def _forget(self, path: Any, remove: Callable[[Any], None]) -> None:
        full = self.meant(path, follow=False)
        if full is None:
            remove(path)
            return
        if self._there(self.top + full):
            remove(self.top + full)
        self.links.pop(full, None)
        self.gone.add(full)

    def rename(self, src: Any, dst: Any) -> None:
        """Do what ``os.rename`` and ``os.replace`` do."""
        source = self.meant(src, follow=False)
        if source is None and self.meant(dst, follow=False) is None:
            self.own.replace(src, dst)
        elif source in self.links:
            target = self.links[source]
            for one in (src, dst):
                if self._exists(one, follow=False):
                    self.unlink(one)
            self.symlink(target, dst)
        else:
            self._copy_whole(src, dst)
            self._remove_whole(src)

    def link(self, src: Any, dst: Any, **_: Any) -> None:
        """Copy, which is what a hard link is in a scratch tree."""
        if self._exists(dst):
            raise _error(errno.EEXIST, dst)
        self._copy_whole(src, dst)

    def symlink(self, src: Any, dst: Any, target_is_directory: bool = False) -> None:
        """Remember what the link means; what lies in the scratch tree shows only that there is one."""
        if self._exists(dst, follow=False):
            raise _error(errno.EEXIST, dst)
        full = self.meant(dst, follow=False)
        if full is None:
            self.own.symlink(src, dst, target_is_directory)
            return
        target = os.path.join(os.path.dirname(full), os.fsdecode(src))
        seen = self.reading(target) if self._exists(target) else target
        self.own.symlink(
            os.path.abspath(seen), self.writing(os.path.join(os.path.dirname(full), os.path.basename(full)))
        )
        self.links[full] = os.fsdecode(src)
        self.gone.discard(full)

    def readlink(self, path: Any) -> Any:
        """Do what ``os.readlink`` does."""
        known = self.links.get(self.meant(path, follow=False) or "")
        if known is None:
            return self.own.readlink(self.reading(path, follow=False))
        return os.fsencode(known) if isinstance(path, bytes) else known

    def listdir(self, path: Any = ".") -> List[Any]:
        """Do what ``os.listdir`` does."""
        if isinstance(path, int):
            return list(self.own.listdir(path))
        with self.scandir(path) as entries:
            return [entry.name for entry in entries]

    def scandir(self, path: Any = ".") -> Any:
        """Do what ``os.scandir`` does; a folder that the script left alone is read as fast as ever."""
        path = "." if path is None else path
        full = self.meant(path)
        if full is None:
            return self.own.scandir(path)
        seen, above = self.reading(path), self.top + full
        if seen != above and not any(one.startswith(os.path.join(full, "")) for one in self.gone):
            return self.own.scandir(seen)
        places = [one for one in (above, full) if self._there(one) and not (one == full and self._is_gone(full))]
        entries: Dict[str, Any] = {}
        for place in places:
            with self.own.scandir(os.fsencode(place) if isinstance(path, bytes) else place) as found:
                for entry in found:
                    name = os.fsdecode(entry.name)
                    hidden = place == full and os.path.join(full, name) in self.gone
                    if name not in entries and not hidden:
                        entries[name] = OverlayEntry(entry, path)
        return OverlayEntries(iter(entries.values()))

    def chdir(self, path: Any) -> None:
        """Do what ``os.chdir`` does."""
        seen, full = self.reading(path), self.meant(path)
        self.own.chdir(seen)
        self.here = full or self.own.getcwd()
        self.away = seen != path

    def _is_gone(self, full: str) -> bool:
        while full not in self.gone:
            parent = os.path.dirname(full)
            if parent == full:
                return False
            full = parent
        return True

    def _exists(self, path: Any, *, follow: bool = True) -> bool:
        try:
            return self._there(self.reading(path, follow=follow))
        except FileNotFoundError:
            return False

    def _there(self, path: Any) -> bool:
        try:
            self.own.lstat(path)
        except (OSError, ValueError):
            return False
        return True

    def _make_folders(self, path: str) -> None:
        if not self._there(path):
            self._make_folders(os.path.dirname(path))
            self.own.mkdir(path)

    def _copy(self, source: Any, target: Any) -> None:
        size = self.own.stat(source).st_size
        with self.own_open(source, "rb") as old, self.own_open(target, "wb") as new:
            if size > LARGE_BYTES:
                new.truncate(size)
            else:
                shutil.copyfileobj(old, new)

    def _copy_whole(self, src: Any, dst: Any) -> None:
        seen = self.reading(src)
        if not stat.S_ISDIR(self.own.stat(seen).st_mode):
            self._copy(seen, self._target(dst, kept=False, made=True, new=False))
            return
        if not self._exists(dst):
            self.mkdir(dst)
        for name in self.listdir(src):
            self._copy_whole(os.path.join(src, name), os.path.join(dst, name))

    def _remove_whole(self, path: Any) -> None:
        if stat.S_ISDIR(self.own.lstat(self.reading(path, follow=False)).st_mode):
            for name in self.listdir(path):
                self._remove_whole(os.path.join(path, name))
            self.rmdir(path)
        else:
            self.unlink(path)


def _error(code: int, path: Any) -> OSError:
    return OSError(code, os.strerror(code), path)
