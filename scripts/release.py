#!/usr/bin/env python3
"""Packs a release: programs with libtorch, the changelog's section, checksums (docs/releasing.md).

    python3 scripts/release.py 0.2.0             checks, builds nothing, packs target/release into target/release-0.2.0
    python3 scripts/release.py 0.2.0 --dry-run   checks alone, and prints what would be packed

It tags nothing and uploads nothing.
"""

import argparse
import hashlib
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PROGRAMS = ["zagros", "zagros-server", "zagros-operator", "zagros-bench"]


def section(changelog: str, version: str) -> str:
    """The changelog's section of a version; empty if there is none."""
    heading = rf"^## \[?{re.escape(version)}\]?(?: .*)?$"
    found = re.search(heading + r"\n(.*?)(?=^## |\Z)", changelog, re.MULTILINE | re.DOTALL)
    return found.group(1).strip() if found else ""


def problems(version: str) -> list[str]:
    """All reasons why this commit cannot be the release."""
    found = []
    if not re.fullmatch(r"\d+\.\d+\.\d+(-[0-9A-Za-z.]+)?", version):
        found.append(f"{version} is no version: three numbers, such as 0.2.0")
    manifest = tomllib.loads((ROOT / "Cargo.toml").read_text())["workspace"]["package"]["version"]
    if manifest != version:
        found.append(f"Cargo.toml says version {manifest}: set workspace.package.version to {version}")
    if not section((ROOT / "CHANGELOG.md").read_text(), version):
        found.append(f"CHANGELOG.md has no section `## {version}`: move what is under `## Unreleased` there")
    if git("status", "--porcelain"):
        found.append("the working tree has changes: commit them")
    tagged = git("tag", "--list", f"v{version}") and git("rev-list", "-n", "1", f"v{version}")
    if tagged and tagged != git("rev-parse", "HEAD"):
        found.append(f"the tag v{version} names another commit, {tagged[:12]}")
    return found


def git(*arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()


def libraries(program: Path) -> list[Path]:
    """The libraries of libtorch that a program loads."""
    printed = subprocess.run(["ldd", program], capture_output=True, text=True, check=True).stdout
    return [Path(path) for path in re.findall(r"=> (\S*/\.deps/libtorch/lib\S*/\S+) \(", printed)]


def contents() -> list[tuple[Path, str]]:
    """The files of the archive, and their names in it."""
    programs = [(ROOT / "target/release" / name, f"bin/{name}") for name in PROGRAMS]
    files = [(ROOT / name, name) for name in ["LICENSE", "README.md", "CHANGELOG.md"]]
    loaded = {path for path, _ in programs if path.exists() for path in libraries(path)}
    return programs + files + [(path, f"lib/{path.name}") for path in sorted(loaded)]


def pack(version: str) -> Path:
    folder = ROOT / "target" / f"release-{version}"
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "stripped").mkdir(parents=True)
    name = f"zagros-{version}-x86_64-linux"
    archive = folder / f"{name}.tar.gz"
    with tarfile.open(archive, "w:gz") as tar:
        for path, inside in contents():
            if inside.startswith("bin/"):
                # Debug lines are three quarters of a program.
                stripped = folder / "stripped" / path.name
                subprocess.run(["strip", "-o", stripped, path], check=True)
                path = stripped
            tar.add(path.resolve(), f"{name}/{inside}")
    shutil.rmtree(folder / "stripped")
    (folder / "NOTES.md").write_text(section((ROOT / "CHANGELOG.md").read_text(), version) + "\n")
    digest = hashlib.sha256(archive.read_bytes()).hexdigest()
    (folder / "SHA256SUMS").write_text(f"{digest}  {archive.name}\n")
    return folder


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("version")
    parser.add_argument("--dry-run", action="store_true", help="check, print what would be packed, write nothing")
    arguments = parser.parse_args()
    found = problems(arguments.version)
    if not arguments.dry_run and found:
        sys.exit("error: this commit cannot be released\n" + "\n".join(f"  {problem}" for problem in found))
    missing = [str(path.relative_to(ROOT)) for path, _ in contents() if not path.exists()]
    if arguments.dry_run:
        print("\n".join(f"  {inside}" for _, inside in contents()))
        found += [f"{path} is not built: run make programs" for path in missing]
        print("\n".join(["not ready:", *(f"  {problem}" for problem in found)]) if found else "ready")
        return
    if missing:
        sys.exit(f"error: not built: {', '.join(missing)}; run make programs")
    print(f"{pack(arguments.version).relative_to(ROOT)}: archive, NOTES.md, SHA256SUMS")


if __name__ == "__main__":
    main()
