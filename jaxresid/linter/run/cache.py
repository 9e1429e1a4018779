"""Keep the results of linting files, by their content, from one run to the next.

An entry answers only for the bytes that it was made from, and for what it says that it depends on.
A cache that cannot be read or written counts as empty; so does one whose directory is a link to a
place outside the folder that it is in.
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

from jaxresid import regular_files, user_cache

_FORMAT = 3
_UNUSED_NS = 30 * 24 * 3600 * 10**9
_ABANDONED_NS = 3600 * 10**9
_LOCK_WAIT_S = 1.0

Payload = Any


def cache_key(version: str, rules: str, config: str, place: str) -> str:
    """Return the name of the cache for one version, set of rules, configuration and project.

    The minor version of Python counts as well: its grammar decides what parses.

    Args:
      version: the version of jaxresid.
      rules: fingerprint of the rules.
      config: fingerprint of the configuration.
      place: what tells the project from others that share a folder of caches.
    """
    parts = (_FORMAT, version, rules, config, place, sys.version_info[:2])
    return _digest(repr(parts).encode("utf-8", "surrogateescape"))


@dataclass(slots=True)
class LintCache:
    """Payloads, which are any JSON but null, by name, in two sections; made by `open`.

    A name is a path, relative to the project so that another checkout has the same ones.

    Attributes:
      directory: the folder of all caches.
      key: the name of the cache.
      opened_ns: a time before any file was read that is looked up in the cache.
    """

    directory: Path
    key: str
    opened_ns: int
    _sections: dict[str, dict[str, Any]]
    _used: set[str] = field(default_factory=set)
    _changed: set[tuple[str, str]] = field(default_factory=set)

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
        return cls(directory, key, opened, _load(_file(directory, key), key))

    def get(self, name: str, content: bytes, *, depends: str) -> Payload | None:
        """Return the payload that was put for a file with this content, or None.

        Args:
          name: the name of the file.
          content: the bytes of the file.
          depends: what else the payload was made from, as for `put`.
        """
        self._used.add(name)
        entry: Any = self._sections[_FILES].get(name)
        if not _well_formed(entry):
            return None
        if entry[_DEPENDS] != depends or entry[_DIGEST] != _digest(content):
            return None
        return entry[_PAYLOAD]

    def put(self, name: str, content: bytes, payload: Payload, *, depends: str) -> None:
        """Keep a payload for the content of a file.

        Args:
          name: the name of the file.
          content: the bytes that the payload was made from.
          payload: the payload.
          depends: what else the payload was made from; `get` must be asked with the same.
        """
        self._used.add(name)
        self._set(_FILES, name, [_digest(content), depends, payload])

    def payloads(self) -> Iterator[Payload]:
        """Yield the payloads of all files."""
        for entry in self._sections[_FILES].values():
            if _well_formed(entry):
                yield entry[_PAYLOAD]

    def project(self, name: str) -> Payload | None:
        """Return what was put for a project, or None."""
        return self._sections[_PROJECTS].get(name)

    def put_project(self, name: str, payload: Payload) -> None:
        """Keep what is known of a project."""
        if self._sections[_PROJECTS].get(name) != payload:
            self._set(_PROJECTS, name, payload)

    def _set(self, section: str, name: str, payload: Payload) -> None:
        self._sections[section][name] = payload
        self._changed.add((section, name))

    def save(self, root: Path) -> None:
        """Write what changed, merged with what others wrote in the meantime.

        Files that no longer exist are removed.

        Args:
          root: what the names of files are relative to.
        """
        known = self._sections[_FILES]
        gone = {name for name in known if name not in self._used and not _exists(root / name)}
        if not self._changed and not gone:
            return
        with suppress(OSError, ValueError, TypeError, RecursionError):
            if regular_files.leads_out(self.directory, self.directory.parent):
                return
            user_cache.prepare(self.directory)
            file = _file(self.directory, self.key)
            with _locked(file.with_suffix(".lock")):
                sections = _load(file, self.key)
                for name in gone:
                    sections[_FILES].pop(name, None)
                for section, name in self._changed:
                    sections[section][name] = self._sections[section][name]
                _write(file, self.key, sections)
            _remove_stale(self.directory)
            self._changed.clear()


_FILES, _PROJECTS = "files", "projects"
# An entry is a list, to load fast.
_DIGEST, _DEPENDS, _PAYLOAD = range(3)


def _well_formed(entry: object) -> bool:
    return isinstance(entry, list) and len(entry) == _PAYLOAD + 1 and entry[_PAYLOAD] is not None


def _digest(data: bytes) -> str:
    return hashlib.blake2b(data, digest_size=16).hexdigest()


def _exists(path: Path) -> bool:
    try:
        os.stat(path)
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return False
    except OSError:
        return True
    return True


def _file(directory: Path, key: str) -> Path:
    return directory / f"{key}.json"


def _load(file: Path, key: str) -> dict[str, dict[str, Any]]:
    """Return the sections of a cache file, empty where it is not valid.

    The file holds one line that describes what follows, and the sections.
    """
    sections: Any = None
    with suppress(OSError, ValueError, RecursionError):
        if not regular_files.leads_out(file.parent, file.parent.parent):
            head, _, body = regular_files.read(file).partition(b"\n")
            if json.loads(head) == _head(key, body):
                sections = json.loads(body)
    found = sections if isinstance(sections, dict) else {}
    return {
        name: found[name] if isinstance(found.get(name), dict) else {}
        for name in (_FILES, _PROJECTS)
    }


def _head(key: str, body: bytes) -> dict[str, object]:
    return {"jaxresid-cache": _FORMAT, "key": key, "digest": _digest(body)}


def _write(file: Path, key: str, sections: dict[str, dict[str, Any]]) -> None:
    body = json.dumps(sections, separators=(",", ":")).encode("ascii")
    data = json.dumps(_head(key, body)).encode("ascii") + b"\n" + body
    user_cache.write(file, data)


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
