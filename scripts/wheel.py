#!/usr/bin/env python3
"""Pack the Python package `zagros` into a wheel: target/wheel/zagros-*.whl.

The native half and the server program come from the workspace's own build, `make programs` (docs/adr/0094 says why maturin
does not build them). The wheel holds the program zagros-server with the system libraries that it needs beyond those of
every Linux, so a machine needs nothing but CPython 3.10 or later.
"""
import base64
import hashlib
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "python" / "zagros"
BUILT = ROOT / "target" / "release"
# Libraries that every Linux with glibc has.
EVERYWHERE = re.compile(r"lib(c|m|dl|rt|pthread|gcc_s|stdc\+\+)\.so|ld-linux|linux-vdso")
# A fixed time: the same content gives the same wheel.
TIME = (2026, 1, 1, 0, 0, 0)


def main() -> None:
    version = re.search(r'__version__ = "(.*)"', (PACKAGE / "__init__.py").read_text())[1]
    with tempfile.TemporaryDirectory() as scratch:
        files = package_files() | native_files(pathlib.Path(scratch))
        target = ROOT / "target" / "wheel"
        target.mkdir(parents=True, exist_ok=True)
        for old in target.glob("*.whl"):
            old.unlink()
        tag = f"cp310-abi3-{platform()}"
        wheel = target / f"zagros-{version}-{tag}.whl"
        write(wheel, files, version, tag)
    print(f"{wheel.relative_to(ROOT)}: {wheel.stat().st_size / 1e6:.1f} MB")


def platform() -> str:
    """The oldest glibc that the wheel is said to run with: that of this machine."""
    glibc = subprocess.run(["ldd", "--version"], check=True, capture_output=True, text=True).stdout.split()
    version = next(word for word in glibc if re.fullmatch(r"2\.\d+", word))
    return f"manylinux_{version.replace('.', '_')}_x86_64"


def package_files() -> dict[str, pathlib.Path]:
    """The Python half."""
    sources = [path for path in PACKAGE.rglob("*") if path.suffix in (".py", ".pyi") or path.name == "py.typed"]
    return {f"zagros/{path.relative_to(PACKAGE)}": path for path in sources}


def native_files(scratch: pathlib.Path) -> dict[str, pathlib.Path]:
    """The native half and the server program, without their debug information."""
    library, program = scratch / "_native.abi3.so", scratch / "zagros-server"
    for source, stripped in ((BUILT / "lib_native.so", library), (BUILT / "zagros-server", program)):
        if not source.is_file():
            sys.exit(f"error: {source} is missing\n  next: make programs")
        subprocess.run(["strip", "-o", stripped, source], check=True)
    files = {"zagros/_native.abi3.so": library, "zagros/_server/zagros-server": program}
    libraries = needed(library)
    if any("torch" in name for name in libraries):
        sys.exit(f"error: the native half links torch: {sorted(libraries)}")
    for name, path in needed(program).items():
        copy = scratch / name
        shutil.copy(path, copy)
        files[f"zagros/_server/lib/{name}"] = copy
    return files


def needed(binary: pathlib.Path) -> dict[str, str]:
    """The libraries of the system that a binary needs, by name, but for those that every Linux has."""
    lines = subprocess.run(["ldd", binary], check=True, capture_output=True, text=True).stdout.splitlines()
    found = dict(line.split(" => ")[0:2] for line in lines if " => " in line)
    return {
        name.strip(): path.split(" (")[0].strip() for name, path in found.items() if not EVERYWHERE.search(name)
    }


def write(wheel: pathlib.Path, files: dict[str, pathlib.Path], version: str, tag: str) -> None:
    """A wheel is a zip with a folder that describes it (PEP 427)."""
    about = f"zagros-{version}.dist-info"
    content = {name: path.read_bytes() for name, path in sorted(files.items())}
    content[f"{about}/METADATA"] = metadata(version).encode()
    content[f"{about}/WHEEL"] = f"Wheel-Version: 1.0\nGenerator: zagros\nRoot-Is-Purelib: false\nTag: {tag}\n".encode()
    content[f"{about}/licenses/LICENSE"] = (ROOT / "LICENSE").read_bytes()
    record = f"{about}/RECORD"
    lines = [f"{name},sha256={digest(data)},{len(data)}" for name, data in content.items()]
    content[record] = "\n".join([*lines, f"{record},,", ""]).encode()
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED, compresslevel=6) as archive:
        for name, data in content.items():
            entry = zipfile.ZipInfo(name, TIME)
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.external_attr = (0o100755 if name.endswith(("zagros-server", ".so")) else 0o100644) << 16
            archive.writestr(entry, data)


def digest(data: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()


def metadata(version: str) -> str:
    return "\n".join([
        "Metadata-Version: 2.4",
        "Name: zagros",
        f"Version: {version}",
        "Summary: Embedding tables larger than the machine for PyTorch, and models of Zagros as data",
        "License-Expression: Apache-2.0",
        "License-File: LICENSE",
        "Requires-Python: >=3.10",
        "Requires-Dist: numpy",
        "Requires-Dist: safetensors",
        "Provides-Extra: torch",
        'Requires-Dist: torch>=2.4; extra == "torch"',
        "",
    ])


if __name__ == "__main__":
    main()
