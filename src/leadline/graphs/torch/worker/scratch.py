"""Keep what a traced script writes away from the user's files, in a scratch tree that reads see through.

Writes of Python code are redirected, and so are the folders it makes, moves and removes. Caches below the home folder
are written as they are, because compiled readers open what is put there, unless the kernel refuses that. Writes of
compiled libraries are not seen: ``leadline.graphs.torch.worker.confinement`` keeps them away where the kernel can.
"""

import builtins
import errno
import gc
import io
import os
import pathlib
import shutil
import stat
import sys
import tempfile
from collections.abc import Iterator
from contextlib import AbstractContextManager
from types import SimpleNamespace
from typing import Any, Callable, Dict, List, Optional, Set

from leadline.graphs.torch.worker.native_files import redirect_native_files


class _OverlayEntry:
    """An entry of a folder, under the path the script uses."""

    def __init__(self, entry: Any, folder: Any) -> None:
        self.entry, self.name, self.path = entry, entry.name, os.path.join(folder, entry.name)

    def __fspath__(self) -> Any:
        return self.path

    def __getattr__(self, name: str) -> Any:
        return getattr(self.entry, name)


class _OverlayEntries(AbstractContextManager[Any], Iterator[Any]):
    """Result of ``os.scandir`` over two folders: an iterator that is a context manager too."""

    def __init__(self, entries: Iterator[Any]) -> None:
        self.entries = entries

    def __next__(self) -> Any:
        return next(self.entries)

    def close(self, *_: object) -> None:
        self.entries = iter(())

    __exit__ = close


READERS = ("stat", "statvfs", "getxattr", "listxattr")
CHANGERS = ("chmod", "chown", "lchown", "utime", "truncate", "setxattr", "removexattr")
REPLACED = (
    "open", "mkdir", "rmdir", "unlink", "remove", "rename", "replace", "link", "symlink", "readlink", "lstat",
    "scandir", "listdir", "chdir", "getcwd", "access",
)  # fmt: skip
CACHES = ("XDG_CACHE_HOME", "HF_HOME", "HF_DATASETS_CACHE", "TORCH_HOME", "TRITON_CACHE_DIR")
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
LARGE_BYTES = 1 << 30  # a larger file that is opened for changes is not copied: zeros of its length are written
_scratch_trees: List["_ScratchTree"] = []


def redirect_writes(folder: str, *, caches: bool = True) -> None:
    """Redirect writes by Python code of this process to ``folder``, except to ``caches`` below the home folder.

    Files opened before stay as they are.
    """
    temporary = os.path.join(folder, "tmp")
    os.makedirs(temporary)
    tempfile.tempdir = os.environ["TMPDIR"] = temporary
    tree = _ScratchTree(folder, caches=caches)
    _scratch_trees[:] = [tree]
    accessor: Any = getattr(pathlib, "_NormalAccessor", None)  # pathlib calls it before Python 3.10
    for name, function in {**tree.functions(), "open": tree.open_descriptor}.items():
        setattr(os, name, function)
        if hasattr(accessor, name):
            setattr(accessor, name, staticmethod(function))
    # With descriptors, rmtree would remove the user's own files.
    shutil._use_fd_functions = False  # type: ignore[attr-defined]
    builtin_open = builtins.open
    builtins.open = io.open = tree.open
    # Modules that did "from io import open", and tables of openers as numpy's, hold their own reference.
    for holder in gc.get_referrers(builtin_open):
        if isinstance(holder, dict) and holder is not vars(tree) and holder is not vars(sys.modules["_io"]):
            holder.update({name: tree.open for name, value in holder.items() if value is builtin_open})
    redirect_native_files(tree.place)


def copy_writes(name: str) -> None:
    """Go on with a copy of what was written so far, beside a process that goes on with the rest."""
    for tree in _scratch_trees:
        tree.top = shutil.copytree(tree.top, f"{tree.top}-{name}", symlinks=True)


def is_scratch(path: Any) -> bool:
    """Return whether a file was written during this trace."""
    return any(tree.is_written(path) for tree in _scratch_trees)


class _ScratchTree:
    """The script's own writes over the user's files. Methods named as functions of ``os`` stand in for those."""

    def __init__(self, folder: str, *, caches: bool) -> None:
        self.top = os.path.join(os.path.realpath(folder), "tree")
        os.mkdir(self.top)
        cached = [os.path.expanduser("~/.cache"), *filter(None, map(os.environ.get, CACHES))] if caches else []
        usable = [path for path in cached if not os.path.exists(path) or os.access(path, os.W_OK)]
        folders = [*usable, os.path.realpath(folder), folder]
        self.excluded = tuple(os.path.join(os.path.abspath(path), "") for path in (*folders, "/dev", "/proc", "/sys"))
        self.removed: Set[str] = set()
        self.links: Dict[str, str] = {}
        self.cwd, self.cwd_differs = os.getcwd(), False
        names = [name for name in REPLACED + READERS + CHANGERS if hasattr(os, name)]
        self.os = SimpleNamespace(**{name: getattr(os, name) for name in names})
        self.builtin_open = io.open

    def functions(self) -> Dict[str, Any]:
        """Return the replacements for functions of ``os``, by name."""
        functions: Dict[str, Any] = {name: getattr(self, name) for name in REPLACED if hasattr(self, name)}
        functions.update(remove=self.unlink, replace=self.rename, getcwd=lambda: self.cwd)
        functions["access"] = _with_path(self._access, self.path_to_read)
        functions["lstat"] = _with_path(self.os.lstat, lambda path: self.path_to_read(path, follow=False))
        for names, resolve in ((READERS, self.path_to_read), (CHANGERS, self.path_to_change)):
            functions.update((name, _with_path(getattr(self.os, name), resolve)) for name in names if hasattr(os, name))
        return {name: _unless_by_descriptor(getattr(self.os, name), function) for name, function in functions.items()}

    def redirected(self, path: Any, *, follow: bool = True) -> Optional[str]:
        """Return the absolute path, or ``None`` if it is not redirected (descriptors, devices, caches)."""
        if isinstance(path, int) or not path:
            return None
        full = os.path.normpath(os.path.join(self.cwd, os.fsdecode(path)))
        if self.links:
            full = self._follow_links(full, follow=follow)
        return None if (full + os.sep).startswith(self.excluded) else full

    def _follow_links(self, full: str, *, follow: bool) -> str:
        for _ in range(40):  # as many links as Linux follows
            for link, target in self.links.items():
                if (follow and full == link) or full.startswith(link + os.sep):
                    full = os.path.normpath(os.path.join(os.path.dirname(link), target) + full[len(link) :])
                    break
            else:
                return full
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), full)

    def is_written(self, path: Any) -> bool:
        full = self.redirected(path)
        return full is not None and self._lexists(self.top + full)

    def path_to_read(self, path: Any, *, follow: bool = True) -> Any:
        """Return the path to read: the script's own file, or the user's. A removed one raises FileNotFoundError."""
        full = self.redirected(path, follow=follow)
        if full is None:
            return path
        if self._lexists(self.top + full):
            return self.top + full
        if self.removed and self._is_removed(full):
            raise _os_error(errno.ENOENT, path)
        return full if self.cwd_differs or self.links else path

    def path_to_write(self, path: Any) -> Any:
        """Return the path to write to. A missing or read-only folder raises the error of a real write."""
        full = self.redirected(path)
        if full is None:
            return path
        parent = os.path.dirname(full)
        try:
            is_folder = self._is_folder(self.path_to_read(parent))
        except OSError:
            raise _os_error(errno.ENOENT, path) from None
        if not is_folder:
            raise _os_error(errno.ENOTDIR, path)
        checked = full if self._exists(full) else parent
        if not self._access(self.path_to_read(checked), os.W_OK):
            raise _os_error(errno.EACCES, path)
        os.makedirs(self.top + parent, exist_ok=True)
        return self.top + full

    def path_to_change(self, path: Any) -> Any:
        """Return a path to change in place, after copying the content there."""
        source, target = self.path_to_read(path), self.path_to_write(path)
        if source != target and self.redirected(path) is not None:
            if self._is_folder(source):
                os.makedirs(target, exist_ok=True)
            else:
                self._copy(source, target)
        return target

    def place(self, path: Any, writes: bool) -> Any:
        """Return where a file is that a compiled library opens by itself."""
        if not writes:
            return self.path_to_read(path)
        return self.path_to_change(path) if self._exists(path) else self.path_to_write(path)

    def open(self, file: Any, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
        if isinstance(file, int) or kwargs.get("opener") is not None:
            return self.builtin_open(file, mode, *args, **kwargs)
        if set(mode).isdisjoint("wax+"):
            return self.builtin_open(self.path_to_read(file), mode, *args, **kwargs)
        keep = set(mode).isdisjoint("wx")
        target = self._target(file, keep_content=keep, create="r" not in mode, exclusive="x" in mode)
        return self.builtin_open(target, mode, *args, **kwargs)

    def open_descriptor(self, path: Any, flags: int, mode: int = 0o777, *, dir_fd: Optional[int] = None) -> int:
        unnamed = getattr(os, "O_TMPFILE", 0)
        if dir_fd is not None or not flags & WRITING or (unnamed and flags & unnamed == unnamed):
            readable = path if dir_fd is not None else self.path_to_read(path)
            return int(self.os.open(readable, flags, mode, dir_fd=dir_fd))
        create, exclusive = bool(flags & os.O_CREAT), bool(flags & os.O_EXCL)
        target = self._target(path, keep_content=not flags & os.O_TRUNC, create=create, exclusive=exclusive)
        return int(self.os.open(target, flags, mode))

    def _target(self, path: Any, *, keep_content: bool, create: bool, exclusive: bool) -> Any:
        """Return the path to write to, by the rules of ``os.open``."""
        if self.redirected(path) is None:
            return path
        if self._exists(path):
            if exclusive:
                raise _os_error(errno.EEXIST, path)
            if self._is_folder(self.path_to_read(path)):
                raise _os_error(errno.EISDIR, path)
        elif not create:
            raise _os_error(errno.ENOENT, path)
        target = self.path_to_change(path) if keep_content and self._exists(path) else self.path_to_write(path)
        self.removed.discard(self.redirected(path) or "")
        return target

    def mkdir(self, path: Any, mode: int = 0o777) -> None:
        # A new folder still hides the content of a removed one of that name.
        if self._exists(path):
            raise _os_error(errno.EEXIST, path)
        self.os.mkdir(self.path_to_write(path), mode)

    def rmdir(self, path: Any) -> None:
        if self.listdir(path):
            raise _os_error(errno.ENOTEMPTY, path)
        self._remove(path, self.os.rmdir)

    def unlink(self, path: Any) -> None:
        if stat.S_ISDIR(self.os.lstat(self.path_to_read(path, follow=False)).st_mode):
            raise _os_error(errno.EISDIR, path)
        self._remove(path, self.os.unlink)

    def _remove(self, path: Any, remove: Callable[[Any], None]) -> None:
        full = self.redirected(path, follow=False)
        if full is None:
            remove(path)
            return
        if self._lexists(self.top + full):
            remove(self.top + full)
        self.links.pop(full, None)
        self.removed.add(full)

    def rename(self, src: Any, dst: Any) -> None:
        source = self.redirected(src, follow=False)
        if source is None and self.redirected(dst, follow=False) is None:
            self.os.replace(src, dst)
        elif source in self.links:
            target = self.links[source]
            for path in (src, dst):
                if self._exists(path, follow=False):
                    self.unlink(path)
            self.symlink(target, dst)
        else:
            self._copy_tree(src, dst)
            is_folder = stat.S_ISDIR(self.os.lstat(self.path_to_read(src, follow=False)).st_mode)
            # shutil calls the functions of this tree.
            (shutil.rmtree if is_folder else self.unlink)(src)

    def link(self, src: Any, dst: Any, **_: Any) -> None:
        # In a scratch tree, a hard link is a copy.
        if self._exists(dst):
            raise _os_error(errno.EEXIST, dst)
        self._copy_tree(src, dst)

    def symlink(self, src: Any, dst: Any, target_is_directory: bool = False) -> None:
        """Record the target of a link. The scratch tree only shows that the link exists."""
        if self._exists(dst, follow=False):
            raise _os_error(errno.EEXIST, dst)
        full = self.redirected(dst, follow=False)
        if full is None:
            self.os.symlink(src, dst, target_is_directory)
            return
        target = os.path.join(os.path.dirname(full), os.fsdecode(src))
        content = self.path_to_read(target) if self._exists(target) else target
        self.os.symlink(os.path.abspath(content), self.path_to_write(full))
        self.links[full] = os.fsdecode(src)
        self.removed.discard(full)

    def readlink(self, path: Any) -> Any:
        target = self.links.get(self.redirected(path, follow=False) or "")
        if target is None:
            return self.os.readlink(self.path_to_read(path, follow=False))
        return os.fsencode(target) if isinstance(path, bytes) else target

    def listdir(self, path: Any = ".") -> List[Any]:
        if isinstance(path, int):
            return list(self.os.listdir(path))
        with self.scandir(path) as entries:
            return [entry.name for entry in entries]

    def scandir(self, path: Any = ".") -> Any:
        path = "." if path is None else path
        full = self.redirected(path)
        if full is None:
            return self.os.scandir(path)
        source, scratch = self.path_to_read(path), self.top + full
        # An untouched folder is scanned directly, at full speed.
        if source != scratch and not any(candidate.startswith(os.path.join(full, "")) for candidate in self.removed):
            return self.os.scandir(source)
        entries: Dict[str, Any] = {}
        for folder in filter(self._lexists, (scratch,) if self._is_removed(full) else (scratch, full)):
            with self.os.scandir(os.fsencode(folder) if isinstance(path, bytes) else folder) as listed:
                for entry in listed:
                    name = os.fsdecode(entry.name)
                    hidden = folder == full and os.path.join(full, name) in self.removed
                    if name not in entries and not hidden:
                        entries[name] = _OverlayEntry(entry, path)
        return _OverlayEntries(iter(entries.values()))

    def chdir(self, path: Any) -> None:
        target, full = self.path_to_read(path), self.redirected(path)
        self.os.chdir(target)
        self.cwd = full or self.os.getcwd()
        self.cwd_differs = target != path

    def _is_removed(self, full: str) -> bool:
        while full not in self.removed:
            parent = os.path.dirname(full)
            if parent == full:
                return False
            full = parent
        return True

    def _access(self, path: Any, mode: int, **options: Any) -> bool:
        """Return the result of ``os.access`` without the confinement, which makes most folders read-only."""
        if self.os.access(path, mode, **options) or not mode & os.W_OK:
            return bool(self.os.access(path, mode, **options))
        if not self._lexists(path) or not self.os.statvfs(path).f_flag & os.ST_RDONLY:
            return False
        status = self.os.stat(path)
        shift = 6 if status.st_uid == os.geteuid() else 3 if status.st_gid in os.getgroups() else 0
        permitted = os.geteuid() == 0 or status.st_mode >> shift & os.W_OK
        return bool(permitted and self.os.access(path, mode & ~os.W_OK, **options))

    def _is_folder(self, path: Any) -> bool:
        return stat.S_ISDIR(self.os.stat(path).st_mode)

    def _exists(self, path: Any, *, follow: bool = True) -> bool:
        try:
            return self._lexists(self.path_to_read(path, follow=follow))
        except FileNotFoundError:
            return False

    def _lexists(self, path: Any) -> bool:
        try:
            self.os.lstat(path)
        except (OSError, ValueError):
            return False
        return True

    def _copy(self, source: Any, target: Any) -> None:
        size = self.os.stat(source).st_size
        with self.builtin_open(source, "rb") as old, self.builtin_open(target, "wb") as new:
            if size > LARGE_BYTES:
                new.truncate(size)
            else:
                shutil.copyfileobj(old, new)

    def _copy_tree(self, src: Any, dst: Any) -> None:
        source = self.path_to_read(src)
        if not self._is_folder(source):
            self._copy(source, self._target(dst, keep_content=False, create=True, exclusive=False))
            return
        if not self._exists(dst):
            self.mkdir(dst)
        for name in self.listdir(src):
            self._copy_tree(os.path.join(src, name), os.path.join(dst, name))


def _with_path(function: Any, resolve: Callable[[Any], Any]) -> Any:
    return lambda path, *args, **kwargs: function(resolve(path), *args, **kwargs)


def _unless_by_descriptor(original: Any, replacement: Any) -> Any:
    """Return a function that leaves a path relative to a descriptor to the original."""

    def function(*args: Any, **kwargs: Any) -> Any:
        if any(value is not None for key, value in kwargs.items() if key.endswith("dir_fd")):
            return original(*args, **kwargs)
        return replacement(*args, **{key: value for key, value in kwargs.items() if not key.endswith("dir_fd")})

    return function


def _os_error(code: int, path: Any) -> OSError:
    return OSError(code, os.strerror(code), path)
