#!/usr/bin/env python3
"""Runs every check of `make test`, also after one has failed, and says at the end what failed and how to repeat it.

    python3 scripts/gate.py [NAME ...]           make test: all checks, or these alone
    python3 scripts/gate.py --nightly [NAME ...] make nightly: what takes too long for every change

Two lanes run side by side: what holds cargo's lock on the folder target, and the rest. A check of the second lane prints when it
has ended. CPU seconds are those of a check's processes, as the system counts them for processes that were waited for.
"""

import os
import pathlib
import re
import subprocess
import sys
import threading
import time

REPOSITORY = pathlib.Path(__file__).resolve().parent.parent
LOGS = REPOSITORY / "target" / "gate"
# Of the gate on two cores of an AMD Zen 3, after `make train` (CONTRIBUTING.md).
CPU_BOUND = 6000
SEEDS = "ZAGROS_SEEDS=2000 PROPTEST_CASES=2000"

# (name, command). Each command works on its own, so that it can be repeated.
CARGO_LANE = [
    ("format", "cargo fmt --all --check"),
    ("programs", "make programs && sh scripts/without_libtorch.sh"),
    ("lint", "cargo clippy --release --workspace --all-targets --quiet -- --deny warnings"),
    ("tests-built", "cargo test --release --workspace --quiet --lib --bins --tests --no-run"),
    ("tests", "cargo test --release --workspace --quiet --lib --bins --tests --no-fail-fast"),
    ("doc-tests", "cargo test --release --workspace --quiet --doc --no-fail-fast"),
    ("bench-smoke", "make bench-smoke"),
]
# (name, command, check of the other lane that must have ended before).
SIDE_LANE = [
    ("docs", "make docs", None),
    ("python-packages", "sh scripts/python_tests.sh --install", None),
    # Not by make, which would wait for cargo's lock.
    ("manifests", "python3 scripts/check_manifests.py target/release/zagros-operator", "programs"),
    ("python", "python3 scripts/wheel.py && sh scripts/python_tests.sh", "programs"),
]
NIGHTLY = [
    ("chaos", "make chaos"),
    ("damage", "make programs && python3 scripts/damage.py"),
    ("bench-all", "make bench-all"),
    ("seeds", f"{SEEDS} cargo test --release --workspace --exclude zagros-tests --quiet --lib --tests --no-fail-fast"),
    ("python-torch", "TORCH=2.13.0 make python"),
    ("nccl", "make nccl"),
]

PASSED = re.compile(r"(\d+) passed")
FAILED = re.compile(r"(\d+) failed")


class Check:
    """One command, and how it went."""

    def __init__(self, name: str, command: str, after: str | None = None):
        self.name, self.command, self.after = name, command, after
        self.ended = threading.Event()
        self.code, self.cpu, self.wall = None, 0.0, 0.0

    def run(self, quiet: bool):
        """Runs to the end, and lets those go on that wait for it, in whatever way it ends."""
        try:
            self.execute(quiet)
        finally:
            self.ended.set()

    def execute(self, quiet: bool):
        """Prints as it goes, or all at the end if quiet."""
        log = LOGS / f"{self.name}.log"
        began = time.monotonic()
        print(f"gate: {self.name}: {self.command}", flush=True)
        # A file, not a pipe: a process that a test left behind would keep a pipe open.
        with open(log, "wb") as file:
            process = subprocess.Popen(["sh", "-c", self.command], cwd=REPOSITORY, stdin=subprocess.DEVNULL,
                                       stdout=file, stderr=subprocess.STDOUT)
        with open(log, "rb") as output:
            pid = 0
            while pid == 0:
                time.sleep(0.2)
                pid, status, usage = os.wait4(process.pid, os.WNOHANG)
                if not quiet or pid != 0:
                    sys.stdout.buffer.write(output.read())
                    sys.stdout.flush()
        self.code = process.returncode = os.waitstatus_to_exitcode(status)
        self.cpu, self.wall = usage.ru_utime + usage.ru_stime, time.monotonic() - began
        print(f"gate: {self.name}: {'passed' if self.code == 0 else f'FAILED with {self.code}'}, "
              f"{self.cpu:.0f} s of CPU in {self.wall:.0f} s", flush=True)

    def tests(self) -> tuple[int, int]:
        """How many tests passed and failed, by the closing lines of the test runners."""
        lines = [line for line in (LOGS / f"{self.name}.log").read_text(errors="replace").splitlines()
                 if line.startswith("test result:") or re.search(r"\d (passed|failed).* in [\d.]+s", line)]
        count = lambda pattern: sum(int(found[1]) for line in lines if (found := pattern.search(line)))
        return count(PASSED), count(FAILED)


def run_lane(checks: list[Check], quiet: bool, others: dict[str, Check]):
    """Runs the checks one after the other."""
    for check in checks:
        if check.after in others:
            others[check.after].ended.wait()
        check.run(quiet)


def summarize(checks: list[Check]) -> int:
    """Prints a line for each check and those that failed last. Returns the exit code."""
    print(f"\n{'check':<18}{'CPU s':>8}{'wall s':>8}")
    for check in checks:
        print(f"{check.name:<18}{check.cpu:>8.0f}{check.wall:>8.0f}{'' if check.code == 0 else '  FAILED'}")
    print(f"{'all':<18}{sum(check.cpu for check in checks):>8.0f}  (bound on two cores of a Zen 3: {CPU_BOUND})")
    failed = [check for check in checks if check.code != 0]
    for check in failed:
        print(f"error: {check.name} failed; its output is in target/gate/{check.name}.log; repeat it with\n    {check.command}")
    tests = [check.tests() for check in checks]
    broken = sum(tests[1] for tests in tests)
    # A check that fails without a test that failed counts as one.
    broken += sum(1 for check in failed if check.tests()[1] == 0)
    print(f"{sum(tests[0] for tests in tests)} passed, {broken} failed")
    return 1 if failed else 0


def main(arguments: list[str]) -> int:
    """Runs the checks that are asked for."""
    LOGS.mkdir(parents=True, exist_ok=True)
    nightly = "--nightly" in arguments
    names = [argument for argument in arguments if argument != "--nightly"]
    first = [Check(*check) for check in (NIGHTLY if nightly else CARGO_LANE)]
    second = [Check(*check) for check in ([] if nightly else SIDE_LANE)]
    unknown = set(names) - {check.name for check in first + second}
    if unknown:
        known = " ".join(check.name for check in first + second)
        print(f"error: no check {' '.join(sorted(unknown))}; there are: {known}", file=sys.stderr)
        return 2
    if names:
        first, second = ([check for check in lane if check.name in names] for lane in (first, second))
    by_name = {check.name: check for check in first}
    beside = threading.Thread(target=run_lane, args=(second, True, by_name))
    beside.start()
    run_lane(first, False, {})
    beside.join()
    return summarize(first + second)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
