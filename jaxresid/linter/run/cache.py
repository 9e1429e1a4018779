"""Cache the results of linting by file content.

An entry answers only for the content it was made from: the file's stat is the same and can be
trusted, or its bytes have the same digest. A cache that cannot be read or written counts as empty;
so does one whose directory is a link to a place outside the folder that it is in.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from jaxresid import regular_files

_FORMAT = 1
# The coarsest timestamps are those of FAT. Within them a file can change and look unchanged.
GRANULARITY_NS = 2_000_000_000
_UNUSED_NS = 30 * 24 * 3600 * 10**9
_ABANDONED_NS = 3600 * 10**9
_LOCK_WAIT_S = 1.0

_TAG = """Signature: 8a477f597d28d172789f06886806bc55
# This directory was made by jaxresid. See https://bford.info/cachedir/
"""

Payload = Any


def cache_key(version: str, rules: str, config: str, root: str | os.PathLike[str]) -> str:
    """Return the name of the cache for one version, set of rules, configuration and project.

    The minor version of Python counts as well: its grammar decides what parses.

    Args:
      version: the version of jaxresid.
      rules: fingerprint of the rules.
      config: fingerprint of the configuration.
      root: the directory of the project.
    """
    parts = (_FORMAT, version, rules, config, os.path.abspath(root), sys.version_info[:2])
    return _digest(repr(parts).encode("utf-8", "surrogateescape"))


@dataclass(slots=True)
class LintCache:
    """Payloads, which are any JSON but null, by absolute path; made by `open`."""

    directory: Path
    key: str
    _entries: dict[str, Any]
    _opened_ns: int
    _used: set[str] = field(default_factory=set)
    _changed: set[str] = field(default_factory=set)

    @classmethod
    def open(
        cls, directory: str | os.PathLike[str], key: str, *, since_ns: int | None = None
    ) -> LintCache:
        """Return the cache of `key`; never fails.

        Args:
          directory: the folder of all caches.
          key: the name of the cache, from `cache_key`.
          since_ns: a time in nanoseconds before any file was read that is looked up in the cache;
            None for now.
        """
        opened = time.time_ns() if since_ns is None else since_ns
        directory = Path(directory)
        return cls(directory, key, _load(_file(directory, key), key), opened)

    def get(
        self,
        path: str | os.PathLike[str],
        stat: os.stat_result | None,
        *,
        depends: str,
        content: bytes | None = None,
    ) -> Payload | None:
        """Return the payload that was put for the file as it is now, or None.

        Ask with the stat alone first, as that spares reading the file; then with the content.

        Args:
          path: the absolute path of the file.
          stat: the stat of the file itself, taken before `content` was read.
          depends: what else the payload was made from, as for `put`.
          content: the bytes of the file; None to ask with the stat alone.
        """
        name = os.fspath(path)
        self._used.add(name)
        entry: Any = self._entries.get(name)
        if not _well_formed(entry) or entry[_DEPENDS] != depends:
            return None
        if content is None:
            known = stat is not None and entry[_STAT] == _signature(stat)
            return entry[_PAYLOAD] if known else None
        if entry[_SIZE] != len(content) or entry[_DIGEST] != _digest(content):
            return None
        signature = self._stable_signature(stat)
        if signature is not None and signature != entry[_STAT]:
            self._entries[name] = [signature, *entry[1:]]
            self._changed.add(name)
        return entry[_PAYLOAD]

    def put(
        self,
        path: str | os.PathLike[str],
        stat: os.stat_result | None,
        content: bytes,
        payload: Payload,
        *,
        depends: str,
    ) -> None:
        """Keep a payload for the content of a file.

        Args:
          path: the absolute path of the file.
          stat: the stat of the file itself, taken before `content` was read.
          content: the bytes that the payload was made from.
          payload: the payload.
          depends: what else the payload was made from; `get` must be asked with the same.
        """
        name = os.fspath(path)
        signature = self._stable_signature(stat)
        self._entries[name] = [signature, len(content), _digest(content), depends, payload]
        self._used.add(name)
        self._changed.add(name)

    def save(self) -> None:
        """Write what changed, merged with what others wrote in the meantime.

        Files that no longer exist are removed.
        """
        gone = {name for name in self._entries if name not in self._used and not _exists(name)}
        if not self._changed and not gone:
            return
        with suppress(OSError, ValueError, TypeError, RecursionError):
            if regular_files.leads_out(self.directory):
                return
            _prepare(self.directory)
            file = _file(self.directory, self.key)
            with _locked(file.with_suffix(".lock")):
                entries = _load(file, self.key)
                for name in gone:
                    entries.pop(name, None)
                for name in self._changed:
                    entries[name] = self._entries[name]
                _write(file, self.key, entries)
            _remove_stale(self.directory)
            self._changed.clear()

    def _stable_signature(self, stat: os.stat_result | None) -> list[int] | None:
        """Return the stat's signature, None if the file could still change without changing it.

        That is so where the file changed so shortly before it was read that its timestamps may not
        move again; the cache was opened before any file was read.
        """
        if stat is None:
            return None
        newest = max(stat.st_mtime_ns, stat.st_ctime_ns)
        return None if newest + GRANULARITY_NS > self._opened_ns else _signature(stat)


# An entry is a list, to load fast. A null stat never equals one.
_STAT, _SIZE, _DIGEST, _DEPENDS, _PAYLOAD = range(5)


def _well_formed(entry: object) -> bool:
    return isinstance(entry, list) and len(entry) == _PAYLOAD + 1 and entry[_PAYLOAD] is not None


def _signature(stat: os.stat_result) -> list[int]:
    # ctime cannot be set back, as mtime is by tools that copy it.
    return [stat.st_mtime_ns, stat.st_ctime_ns, stat.st_size, stat.st_ino]


def _digest(data: bytes) -> str:
    return hashlib.blake2b(data, digest_size=16).hexdigest()


def _exists(path: str) -> bool:
    try:
        os.stat(path)
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return False
    except OSError:
        return True
    return True


def _file(directory: Path, key: str) -> Path:
    return directory / f"{key}.json"


def _load(file: Path, key: str) -> dict[str, Any]:
    """Return the entries of a cache file, empty where it is not valid.

    The file holds one line that describes what follows, and the entries.
    """
    try:
        if regular_files.leads_out(file.parent):
            return {}
        head, _, body = regular_files.read(file).partition(b"\n")
        if json.loads(head) != _head(key, body):
            return {}
        entries = json.loads(body)
    except (OSError, ValueError, RecursionError):
        return {}
    return entries if isinstance(entries, dict) else {}


def _head(key: str, body: bytes) -> dict[str, object]:
    return {"jaxresid-cache": _FORMAT, "key": key, "digest": _digest(body)}


def _write(file: Path, key: str, entries: dict[str, Any]) -> None:
    body = json.dumps(entries, separators=(",", ":")).encode("ascii")
    data = json.dumps(_head(key, body)).encode("ascii") + b"\n" + body
    temporary = file.with_name(f"{file.stem}.{os.getpid()}.{time.time_ns()}.tmp")
    try:
        with open(temporary, "xb") as new:  # as a link it would be followed
            new.write(data)
        os.replace(temporary, file)
    except BaseException:
        with suppress(OSError):
            temporary.unlink()
        raise


def _prepare(directory: Path) -> None:
    """Make the directory one that git and backups skip, unless it holds something else."""
    directory.mkdir(parents=True, exist_ok=True)
    tag = directory / "CACHEDIR.TAG"
    if tag.exists() or any(directory.iterdir()):
        return
    for file, text in ((directory / ".gitignore", "*\n"), (tag, _TAG)):
        with suppress(FileExistsError), file.open("x", encoding="ascii") as new:
            new.write(text)


def _remove_stale(directory: Path) -> None:
    """Remove caches of other keys that nobody wrote for a month, and what crashes left behind."""
    now = time.time_ns()
    for file in directory.iterdir():
        stem = file.name.partition(".")[0]
        limit = {".json": _UNUSED_NS, ".lock": _UNUSED_NS, ".tmp": _ABANDONED_NS}.get(file.suffix)
        if limit is None or len(stem) != len(_digest(b"")) or not stem.isalnum():
            continue
        with suppress(OSError):
            if file.lstat().st_mtime_ns + limit < now:
                file.unlink()


@contextmanager
def _locked(file: Path) -> Iterator[None]:
    """Hold a lock for as long as it takes to merge; go on without one where none can be had."""
    try:
        import fcntl
    except ImportError:  # Windows: the last writer wins, which costs time only
        yield
        return
    with open(regular_files.opened(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND), "ab") as handle:
        deadline = time.monotonic() + _LOCK_WAIT_S
        while True:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except OSError:
                if time.monotonic() > deadline:
                    break
                time.sleep(0.005)
        yield
