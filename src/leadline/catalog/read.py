"""Read the catalog: the shipped files and the user's folder, whose entries win."""

import json
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import cached_property
from hashlib import blake2b
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import TypeVar

import msgspec

from leadline.catalog.names import find_device
from leadline.core.documents import MOST_TOML_BYTES, convert_toml, from_json
from leadline.core.errors import InvalidInput, UnknownName
from leadline.core.hardware import Device
from leadline.core.systems import System
from leadline.files.read import read_input_text

T = TypeVar("T", Device, System)

DEVICES = "devices"
SITES = "sites"
"""Subfolder of a user's catalog folder, beside ``devices``; the latter also holds the JSON records of ``leadline
calibrate``."""
ADDITIONS = "additions"
"""Subfolder of TOML files that override keys of the site file of the same name."""

LOOK_S = 1.0
"""Pause between two looks for changed files."""

DIGEST_BYTES = 32
CODE = (
    "catalog/networks.py", "catalog/toml_files.py", "core/documents.py", "core/hardware.py", "core/systems.py",
    "core/units.py",
)  # fmt: skip
"""Files of the package that decide what a source is parsed to."""


class _Entries:
    """The devices and systems of the shipped files and of a folder, by name; each kind is read on first use."""

    def __init__(self, folder: Path | None, cache: Path | None) -> None:
        self._folder, self._cache = folder, cache

    @cached_property
    def devices(self) -> dict[str, Device]:
        sources = [("the shipped devices.toml", (_shipped() / "devices.toml").read_bytes())]
        shipped = _read_cached(sources, Device, self._cache and self._cache / "devices.msgpack", _read_devices)
        user_devices = [
            device for path in self._user_files(DEVICES, "toml") for device in _read_devices(_text(path), str(path))
        ]
        records = [read_record(_text(path), str(path)) for path in self._user_files(DEVICES, "json")]
        return _first_wins([*records, *user_devices, *shipped])

    @cached_property
    def systems(self) -> dict[str, System]:
        sources = [(entry.name, entry.read_bytes()) for entry in _shipped_sites()]
        shipped = _read_cached(sources, System, self._cache and self._cache / "systems.msgpack", _read_site)
        user_systems = [system for path in self._user_files(SITES, "toml") for system in self._site(path)]
        return _first_wins([*user_systems, *shipped])

    def _site(self, path: Path) -> list[System]:
        """Return the systems of a user's file, merged with the additions of the same file name."""
        additions = path.parent.parent / ADDITIONS / path.name
        more = (_text(additions), str(additions)) if additions.exists() else None
        return _read_site(_text(path), str(path), more)

    def _user_files(self, kind: str, form: str) -> list[Path]:
        return [] if self._folder is None else sorted((self._folder / kind).glob(f"*.{form}"))


class TomlCatalog:
    """The ``Catalog`` of the shipped TOML files and of the user's ``folder`` (which need not exist).

    The parsed shipped files are kept in the folder ``cache``, if one is given.
    """

    def __init__(self, folder: Path | None = None, cache: Path | None = None) -> None:
        self._entries = _Entries(folder, cache)

    def devices(self) -> Sequence[Device]:
        """Return all devices, the user's own first."""
        return list(self._current().devices.values())

    def systems(self) -> Sequence[System]:
        """Return all systems, the user's own first."""
        return list(self._current().systems.values())

    def device(self, name: str) -> Device:
        """Return the device of that name or alias, or that a name as people write it means.

        Raises:
            AmbiguousName: it fits several devices.
            UnknownName: it fits none.
        """
        devices = self._current().devices
        return devices[name] if name in devices else find_device(name, list(devices.values()))

    def system(self, name: str) -> System:
        """Return the system of that name, alias or ``SITE-NAME``, ignoring case; ``UnknownName`` if none."""
        folded, systems = name.casefold(), self._current().systems
        for system in systems.values():
            names = (system.name, *system.aliases, f"{system.site}-{system.name}")
            if folded in (candidate.casefold() for candidate in names):
                return system
        raise UnknownName("system", name, systems)

    def _current(self) -> _Entries:
        return self._entries


class LiveCatalog(TomlCatalog):
    """A ``TomlCatalog`` that is read again once a file of the user's folder has changed.

    While a changed file cannot be read, the last good catalog stays in use, and ``report`` gets the reason once.

    Raises:
        InvalidInput: a file cannot be read at first.
    """

    def __init__(
        self, folder: Path, cache: Path | None = None, *, report: Callable[[str], None] = lambda _: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:  # fmt: skip
        super().__init__(folder, cache)
        self._folder, self._cache, self._report, self._clock = folder, cache, report, clock
        self._files = self._fingerprint()
        self._entries = self._read()
        self._looked_s, self._reason = clock(), ""

    def _current(self) -> _Entries:
        if self._clock() - self._looked_s < LOOK_S:
            return self._entries
        self._looked_s = self._clock()
        if (files := self._fingerprint()) != self._files:
            self._files = files
            try:
                self._entries, self._reason = self._read(), ""
            except InvalidInput as error:
                if str(error) != self._reason:
                    self._report(f"the catalog was not read again: {error}")
                self._reason = str(error)
        return self._entries

    def _read(self) -> _Entries:
        entries = _Entries(self._folder, self._cache)
        # Entries are read on first use, but a wrong file must be noticed now.
        _ = entries.devices, entries.systems
        return entries

    def _fingerprint(self) -> list[tuple[str, int, int]]:
        """Return the name, time and size of every file of the folder."""
        files = []
        for path in sorted(self._folder.glob("*/*")):
            with suppress(FileNotFoundError):  # removed meanwhile
                status = path.stat()
                files.append((str(path), status.st_mtime_ns, status.st_size))
        return files


def read_record(text: str, label: str) -> Device:
    """Parse a device's record of ``leadline calibrate``.

    Raises:
        InvalidFile: values of a wrong type, all of which it lists.
        InvalidInput: the text is not JSON.
    """
    try:
        return from_json(text, Device, label=label)
    except InvalidInput:
        with suppress(ValueError, RecursionError):
            convert_toml(json.loads(text), Device, text=text, label=label)
        raise


def _read_devices(text: str, label: str) -> list[Device]:
    # The classes of the rows take 10 ms to define: a cached catalog does not need them.
    from leadline.catalog.toml_files import read_devices  # noqa: PLC0415 - see above

    return read_devices(text, label)


def _read_site(text: str, label: str, additions: tuple[str, str] | None = None) -> list[System]:
    from leadline.catalog.toml_files import read_site  # noqa: PLC0415 - see above

    return read_site(text, label, additions)


def _shipped() -> Traversable:
    return files("leadline.catalog") / "data"


def _shipped_sites() -> list[Traversable]:
    entries = [entry for entry in (_shipped() / SITES).iterdir() if entry.name.endswith(".toml")]
    return sorted(entries, key=lambda entry: entry.name)


def _text(path: Path) -> str:
    return read_input_text(path, most=MOST_TOML_BYTES, fix=", or move it away")


def _first_wins(entries: Iterable[T]) -> dict[str, T]:
    by_name: dict[str, T] = {}
    for entry in entries:
        by_name.setdefault(entry.name, entry)
    return by_name


def _read_cached(
    sources: Sequence[tuple[str, bytes]], kind: type[T], file: Path | None, parse: Callable[[str, str], list[T]]
) -> list[T]:
    """Return the nouns of all ``sources`` (name, content), which ``parse`` reads from a content and a name.

    They come from the cache ``file`` if it was made from the same bytes by the same code, and are written there
    otherwise; an unwritable folder is no error.
    """
    # msgpack decodes in 1 ms what TOML takes 150 ms for.
    if file is None:
        return _parse(sources, parse)
    key = _key(sources)
    try:
        cached = file.read_bytes()
        payload = cached[2 * DIGEST_BYTES :]
        if cached[: 2 * DIGEST_BYTES] == key + _digest(payload):
            return msgspec.msgpack.decode(payload, type=list[kind])  # type: ignore[valid-type]
    except (OSError, msgspec.MsgspecError):
        pass
    nouns = _parse(sources, parse)
    payload = msgspec.msgpack.encode(nouns)
    with suppress(OSError):
        from leadline.files.atomic import write_atomically  # noqa: PLC0415 - only where something is written

        write_atomically(file, key + _digest(payload) + payload)
    return nouns


def _parse(sources: Sequence[tuple[str, bytes]], parse: Callable[[str, str], list[T]]) -> list[T]:
    return [noun for name, content in sources for noun in parse(content.decode(), name)]


def _key(sources: Sequence[tuple[str, bytes]]) -> bytes:
    """Return a digest of the sources and of the code that converts them; a version would not change with it."""
    package = Path(__file__).parents[1]
    texts = [file.read_bytes() for name in CODE if (file := package / name).is_file()]
    return _digest(msgspec.msgpack.encode((sources, texts)))


def _digest(content: bytes) -> bytes:
    return blake2b(content, digest_size=DIGEST_BYTES).digest()
