"""Folders of saves: rows, dense weights, the job, and the manifest that says by which bytes each is known.

The manifest is that of the trainer (docs/snapshots.md): written last, deleted first, with its own SHA-256 in it.
"""

from __future__ import annotations

import hashlib
import json
import os
import pathlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ._native import NativeFolder, NativeSession, ZagrosError

if TYPE_CHECKING:
    from torch import Tensor

MANIFEST = "manifest.json"
DENSE = "dense.safetensors"
JOB = "job.toml"
#: Layout of the folder.
FORMAT = 1
_NO_SEAL = "0" * 64
#: Seconds of a request to an object store, with retries.
_TIMEOUT = 60.0


@dataclass(frozen=True)
class Manifest:
    """What a folder holds."""

    #: A path, or ``s3://bucket/prefix``.
    place: str
    #: The manifest's keys.
    keys: Mapping[str, Any]

    @property
    def folder(self) -> pathlib.Path:
        """The folder on a disk."""
        return pathlib.Path(self.place)

    @property
    def steps(self) -> int:
        """Steps trained."""
        return int(self.keys["steps"])

    @property
    def samples(self) -> int:
        """Samples trained on."""
        return int(self.keys["samples"])

    def file(self, name: str) -> bytes:
        """One of the files, compared with what was saved."""
        record = next((file for file in self.keys["files"] if file["name"] == name), None)
        if record is None:
            raise ZagrosError(f"{self.place}/{MANIFEST} does not name {name}; it is of another save")
        content = NativeFolder(self.place, _TIMEOUT).read(name)
        if hashlib.sha256(content).hexdigest() != record["sha256"]:
            raise ZagrosError(f"{self.place}/{name} is not the file that was saved: it is damaged or of another save; use another one")
        return content

    def row_files(self) -> list[tuple[str, int, bytes]]:
        """Name, bytes and SHA-256 of each file of rows."""
        records = {file["name"]: file for file in self.keys["files"]}
        found = [records[name] for name in self.keys["row_files"]]
        return [(file["name"], int(file["bytes"]), bytes.fromhex(file["sha256"])) for file in found]


def write_file(path: pathlib.Path, content: bytes) -> None:
    """Whole or not at all."""
    NativeFolder(str(path.parent), _TIMEOUT).write(path.name, content)


def open_manifest(folder: str) -> Manifest:
    """Reads the manifest of a model's folder, or of the folder of its run."""
    for place in (folder, f"{folder}/model"):
        files = NativeFolder(place, _TIMEOUT)
        if files.has(MANIFEST):
            text = files.read(MANIFEST)
            break
    else:
        raise ZagrosError(f"{folder} holds no model: there is no {MANIFEST}, nor one in {folder}/model")
    try:
        keys = json.loads(text)
    except ValueError as error:
        raise ZagrosError(f"{place}/{MANIFEST} is damaged ({error}); use another save") from None
    if keys.get("format") != FORMAT:
        raise ZagrosError(f"{place} has the format {keys.get('format')}, and this release reads format {FORMAT}")
    seal = str(keys.get("manifest_sha256", ""))
    if seal != _seal(text, seal):
        raise ZagrosError(f"{place}/{MANIFEST} is damaged (it is not the one that was written); use another save")
    return Manifest(place, keys)


def write(
    session: NativeSession,
    folder: str,
    state: Mapping[str, Tensor],
    job: str,
    fingerprint: str,
    steps: int,
    samples: int,
) -> None:
    """Saves rows and dense weights; the manifest last."""
    import safetensors.torch

    start(folder)
    rows, count = session.save(folder)
    dense = safetensors.torch.save({name: tensor.contiguous().cpu() for name, tensor in state.items()})
    conclude(folder, rows, count, dense, job, fingerprint, steps, samples)


def start(folder: str) -> None:
    """Makes the folder, and takes away an older manifest: at no time one describes other files."""
    target = NativeFolder(folder, _TIMEOUT)
    target.make()
    target.delete(MANIFEST)


def conclude(
    folder: str,
    rows: list[tuple[str, int, bytes]],
    count: int,
    dense: bytes,
    job: str,
    fingerprint: str,
    steps: int,
    samples: int,
    name: str = "embedding-bags",
) -> None:
    """Writes dense weights and job beside files of rows (name, bytes, SHA-256) that are there; the manifest last."""
    target = NativeFolder(folder, _TIMEOUT)
    own = {DENSE: dense, JOB: job.encode()}
    files = [{"name": file, "bytes": size, "sha256": bytes(sha256).hex()} for file, size, sha256 in rows]
    for file, content in own.items():
        target.write(file, content)
        files.append({"name": file, "bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()})
    from . import __version__

    keys: dict[str, Any] = {
        "manifest_sha256": _NO_SEAL,
        "format": FORMAT,
        "job": name,
        "fingerprint": fingerprint,
        "release": __version__,
        "outcome": "finished",
        "steps": steps,
        "samples": samples,
        "dense": DENSE,
        "row_files": [name for name, _, _ in rows],
        "rows": count,
        "files": files,
        "evaluation": None,
        "validation": None,
    }
    text = json.dumps(keys, indent=2).encode()
    target.write(MANIFEST, text.replace(_NO_SEAL.encode(), _seal(text, _NO_SEAL).encode(), 1))


@dataclass(frozen=True)
class Loaded:
    """What a load gives to each rank."""

    steps: int
    samples: int
    #: The dense weights, as safetensors.
    dense: bytes

    def state(self) -> dict[str, Tensor]:
        """The dense weights by name."""
        import safetensors.torch

        return dict(safetensors.torch.load(self.dense))

    def pack(self) -> bytes:
        """As bytes, for the other ranks."""
        return self.steps.to_bytes(8, "little") + self.samples.to_bytes(8, "little") + self.dense

    @staticmethod
    def unpack(packed: bytes) -> Loaded:
        """From what :meth:`pack` has made."""
        return Loaded(int.from_bytes(packed[:8], "little"), int.from_bytes(packed[8:16], "little"), packed[16:])


def place(folder: str | os.PathLike[str]) -> str:
    """The folder under a name that servers know, too."""
    text = os.fspath(folder)
    return text.rstrip("/") if "://" in text else str(pathlib.Path(text).absolute())


def read(session: NativeSession, folder: str) -> Loaded:
    """Has the servers load the rows; the dense weights."""
    manifest = open_manifest(folder)
    dense = manifest.file(manifest.keys["dense"])
    loaded = session.load(manifest.place, manifest.row_files())
    if loaded != manifest.keys["rows"]:
        raise ZagrosError(f"{manifest.keys['rows']} rows were saved, but the embedding servers took {loaded}; is a file missing?")
    return Loaded(manifest.steps, manifest.samples, dense)


def _seal(text: bytes, now: str) -> str:
    return hashlib.sha256(text.replace(now.encode(), _NO_SEAL.encode(), 1)).hexdigest()
