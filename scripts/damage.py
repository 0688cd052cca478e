#!/usr/bin/env python3
"""Damages the files of a killed run, one at a time, and starts the run again: a loss has to be said.

    python3 scripts/damage.py [FOLDER]      all cases take a few minutes; FOLDER keeps what was left of the last one

Mode `sync` learns the same bits whatever was killed. So a run that ends well must equal the run that nobody disturbed, and any other
run must name the file that was damaged, or its folder.
"""

import hashlib
import json
import pathlib
import re
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
TRAINER, SERVER = ROOT / "target/release/zagros", ROOT / "target/release/zagros-server"
DEADLINE_SECONDS = 120
END = 0xFFFFFFFF
PORT = 17700
JOB = """
name = "damage"
data = {{ format = "criteo", train = "{folder}/data/train.txt", test = "{folder}/data/test.txt" }}
embedding.dim = 8
model = {{ kind = "dlrm", bottom = [16, 8], top = [16] }}
train = {{ batch_size = 256, seed = 1, mode = "sync", epochs = 2 }}
output.folder = "{folder}/run"
checkpoint = {{ every_steps = 20, deltas = 2, keep = 3 }}
[cluster]
servers = 2
memory = "256KiB"
durability = "process"
log_folder = "{folder}/run/logs"
cold_folder = "{folder}/run/cold"
coordinator = "127.0.0.1:{port}"
server_addresses = ["127.0.0.1:{first}", "127.0.0.1:{second}"]
timeout_seconds = 20
lease_seconds = 2
"""


class Run:
    """The processes of a run in a folder, each with its output in a file."""

    def __init__(self, folder: pathlib.Path):
        self.folder, self.job = folder, folder / "job.toml"
        self.outputs = folder / "outputs"
        shutil.rmtree(self.outputs, ignore_errors=True)
        self.outputs.mkdir()
        (folder / "run/train").mkdir(parents=True, exist_ok=True)
        self.roles = {"coordinator": self.start("coordinator", SERVER, "coordinator", self.job, "--journal", folder / "run/journal")}
        for index in "01":
            name = f"embedding-server-{index}"
            self.roles[name] = self.start(name, SERVER, "embedding-server", self.job, "--index", index)
        self.roles["dense-worker"] = self.start("dense-worker", TRAINER, "dense-worker", self.job, "--folder", folder / "run/train")

    def start(self, name: str, *command) -> subprocess.Popen:
        output = open(self.outputs / name, "wb")
        return subprocess.Popen([str(part) for part in command], stdin=subprocess.DEVNULL, stdout=output, stderr=output)

    def kill(self):
        for process in self.roles.values():
            process.kill()
            process.wait()

    def end(self) -> dict[str, int]:
        """Waits until the worker has ended, or another role has failed, and ends the rest. The exit codes of those that ended by themselves."""
        deadline = time.monotonic() + DEADLINE_SECONDS
        while self.roles["dense-worker"].poll() is None and not any(process.poll() for process in self.roles.values()):
            if time.monotonic() > deadline:
                self.kill()
                raise SystemExit(f"the run has not ended after {DEADLINE_SECONDS} s:\n{self.output()}")
            time.sleep(0.05)
        # A server ends after the worker. What a failed role says last is written by now.
        time.sleep(0.2)
        codes = {name: process.poll() for name, process in self.roles.items() if process.poll() is not None}
        self.kill()
        return codes

    def output(self) -> str:
        return "".join(f"--- {file.name}\n{file.read_text(errors='replace')}" for file in sorted(self.outputs.iterdir()))

    def step(self) -> int:
        """Step of the newest checkpoint."""
        names = [path.name for path in (self.folder / "run/train/checkpoints").glob("resume-*") if (path / "manifest.json").exists()]
        return max((int(name.removeprefix("resume-")) for name in names), default=0)


def rows_of(content: bytes) -> bytes:
    """A file of rows (embedding-server/rows/src/snapshot/format.rs) without its clock, which counts the seconds that its server ran."""
    kept, at = bytearray(), 16 + int.from_bytes(content[12:16], "little") + 4
    while at < len(content):
        kind, _table, _from, _until, entries, words = struct.unpack_from("<6I", content, at)
        payload = {3: 4 * words, 4: 16, END: 16}.get(kind, entries * (8 + 4 * words))
        if kind not in (4, END):
            kept += content[at : at + 28 + payload]
        at += 28 + payload + 4
    assert at == len(content), "a file of rows is not as its format says"
    return bytes(kept)


def result(folder: pathlib.Path) -> dict[str, str]:
    """What was learned: the hashes of the model's files, and the figures of the test part."""
    model = folder / "run/train/model"
    contents = {file.name: file.read_bytes() for file in model.iterdir() if file.suffix in (".zrows", ".safetensors")}
    hashes = {name: hashlib.sha256(rows_of(content) if name.endswith(".zrows") else content).hexdigest() for name, content in contents.items()}
    summary = json.loads((folder / "run/train/summary.json").read_text())
    return {**hashes, "evaluation": json.dumps(summary["evaluation"], sort_keys=True)}


def flip(file: pathlib.Path):
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 0x10
    file.write_bytes(content)


def cut(file: pathlib.Path):
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])


def blank(file: pathlib.Path):
    file.write_bytes(bytes(file.stat().st_size))


def exchange(file: pathlib.Path):
    """Puts another file of its kind into its place, the one that is nearest by name."""
    others = [other for other in sorted(file.parent.parent.rglob(f"*{file.suffix}")) if other.is_file() and other != file]
    if others:
        file.write_bytes(others[0].read_bytes())


DAMAGES = {"a bit flipped": flip, "cut in its middle": cut, "zeroed": blank, "missing": pathlib.Path.unlink, "exchanged": exchange}


def try_case(folder: pathlib.Path, file: pathlib.Path, damage, expected: dict[str, str]) -> str:
    """Damages one file of the killed run and starts the run again. Returns what came of it."""
    shutil.rmtree(folder / "run")
    shutil.copytree(folder / "killed", folder / "run", symlinks=True)
    damage(folder / "run" / file)
    run = Run(folder)
    codes = run.end()
    named = any(str(part) in run.output() for part in (file, file.parent)) and file.parent != pathlib.Path(".")
    if codes.get("dense-worker") == 0:
        learned = result(folder)
        changed = sorted(name for name in learned.keys() | expected.keys() if learned.get(name) != expected.get(name))
        return f"LOST IN SILENCE: {', '.join(changed)} differ" if changed else "harmless"
    return f"named, exit {sorted(set(codes.values()))}" if named or file.name in run.output() else f"NOT NAMED, exit {codes}"


def one_of_each(killed: pathlib.Path) -> list[pathlib.Path]:
    """Of the files whose names differ by a number, the last: it was in use."""
    files = sorted(file.relative_to(killed) for file in killed.rglob("*") if file.is_file() and file.stat().st_size)
    return list({re.sub(r"\d+", "N", str(file)): file for file in files}.values())


def main(folder: pathlib.Path) -> int:
    subprocess.run([TRAINER, "data", "generate", folder / "data", "--rows", "12000", "--test-rows", "2000"], check=True, stdout=subprocess.DEVNULL)
    (folder / "job.toml").write_text(JOB.format(folder=folder, port=PORT, first=PORT + 1, second=PORT + 2))
    undisturbed = Run(folder)
    if undisturbed.end().get("dense-worker") != 0:
        raise SystemExit(undisturbed.output())
    expected = result(folder)
    shutil.rmtree(folder / "run")

    killed = Run(folder)
    while killed.step() < 40:
        if killed.roles["dense-worker"].poll() is not None:
            raise SystemExit(f"the run was over before it was killed:\n{killed.output()}")
        time.sleep(0.01)
    killed.kill()
    shutil.copytree(folder / "run", folder / "killed", symlinks=True)

    files = one_of_each(folder / "killed")
    cases = [("nothing", files[0], lambda file: None)] + [(name, file, damage) for file in files for name, damage in DAMAGES.items()]
    failed = []
    for name, file, damage in cases:
        outcome = try_case(folder, file, damage, expected)
        print(f"{file}: {name}: {outcome}", flush=True)
        if outcome[0].isupper():
            failed.append(f"{file}: {name}: {outcome}")
            shutil.copytree(folder / "outputs", folder / f"failed-{len(failed)}")
    print(f"{len(cases) - len(failed)} passed, {len(failed)} failed", *failed, sep="\n")
    return 1 if failed else 0


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    if len(sys.argv) > 1:
        sys.exit(main(pathlib.Path(sys.argv[1]).resolve()))
    with tempfile.TemporaryDirectory(prefix="zagros-damage-") as place:
        sys.exit(main(pathlib.Path(place)))
