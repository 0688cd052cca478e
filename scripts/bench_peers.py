#!/usr/bin/env python3
"""Train the benchmark's workload with Zagros and with its peers in turn, and print the ratios to the better peer.

A round is one run of each, one after the other, so that what else the machine does meets all; the median over the
rounds is the figure to quote. A peer's script must take `--data`, `--model`, `--threads`, `--warm`, `--steps` and print one
line of JSON with `cpu_us_per_sample` and `samples_s`; what follows it within the quotes goes to it as it is. A peer
whose packages are not installed is left out, and said to be.

    python3 scripts/bench_peers.py --data FOLDER --python VENV/bin/python \
        --peer "torch_train.py --tables stacked" --peer "torchrec_train.py --path tbe --opt adagrad"
"""

import argparse
import json
import shlex
import statistics
import subprocess
import sys
from pathlib import Path

DEADLINE_SECONDS = 600


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True, help="folder of the workload's files, as the peer's generator wrote them; Zagros makes the same samples")
    parser.add_argument("--peer", required=True, action="append", help="a peer's script with its own arguments, in quotes")
    parser.add_argument("--python", default=sys.executable, help="the Python that has what the peers need")
    parser.add_argument("--zagros", default="target/release/zagros-bench", help="the binary zagros-bench")
    parser.add_argument("--models", nargs="+", default=["dlrm", "ffnn"], choices=["dlrm", "ffnn"])
    parser.add_argument("--threads", type=int, default=1, help="threads of the dense network, in both")
    parser.add_argument("--steps", type=int, default=40, help="counted steps of a run")
    parser.add_argument("--warm", type=int, default=20, help="steps of a run before the counted ones")
    parser.add_argument("--precision", default="f32", help="of Zagros; what sets a peer's is among that peer's own arguments")
    parser.add_argument("--rounds", "--pairs", type=int, default=5, help="runs of each, in turn")
    parser.add_argument("rest", nargs="*", help="for every peer, after --")
    return parser.parse_args()


class Missing(Exception):
    """The packages of a peer are missing."""


def last_json(command):
    """The last line of a program's output. A failure ends this script with the program's own message."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_SECONDS, check=False)
    except FileNotFoundError:
        sys.exit(f"{command[0]}: no such program; see --zagros and --python")
    except subprocess.TimeoutExpired:
        sys.exit(f"{shlex.join(command)}: no end after {DEADLINE_SECONDS} s; ask for fewer --steps")
    if done.returncode != 0:
        reason = (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
        if reason.startswith(("ModuleNotFoundError", "ImportError", "OSError: Could not load this library")):
            raise Missing(reason)
        sys.exit(f"{shlex.join(command)}\nended with {done.returncode}:\n{done.stderr}")
    return json.loads(done.stdout.strip().splitlines()[-1])


def ours(args, model):
    command = [args.zagros, "train", "--model", model, "--json"]
    command += ["--precision", args.precision, "--warm", str(args.warm)]
    found = last_json([*command, "--steps", str(args.steps), "--threads", str(args.threads)])
    return {"cpu": found["cpu_us_per_sample"], "rate": found["samples_per_second"], "split": found["split_us_per_sample"]}


def run_of(peer):
    """The command that runs a peer."""
    script, *own = shlex.split(peer)

    def run(args, model):
        command = [args.python, script, "--data", args.data, "--model", model, "--warm", str(args.warm)]
        found = last_json([*command, "--steps", str(args.steps), "--threads", str(args.threads), *own, *args.rest])
        return {"cpu": found["cpu_us_per_sample"], "rate": found["samples_s"]}

    return run


def present(args):
    """The peers that run here, by name. Each is tried with a step or two."""
    found = {}
    for peer in args.peer:
        name = Path(shlex.split(peer)[0]).stem
        tried = argparse.Namespace(**{**vars(args), "steps": 2})
        try:
            run_of(peer)(tried, args.models[0])
        except Missing as missing:
            print(f"left out: {name} cannot run under {args.python}: {missing}")
        else:
            found[name] = run_of(peer)
    if not found:
        sys.exit("no peer can be run; install the packages of one, or name another Python with --python")
    return found


def ratios(runs, peers, figure, better):
    """For each round, the figure of Zagros divided by that of the better peer."""
    ours_, theirs = runs["zagros"], zip(*(runs[name] for name in peers), strict=True)
    return [us[figure] / better(them[figure] for them in each) for us, each in zip(ours_, theirs, strict=True)]


def compare(args, model, peers):
    """One line per round, then the medians."""
    everyone = {**peers, "zagros": ours}
    runs = {name: [] for name in everyone}
    print(f"{model}, {args.threads} thread(s), {args.steps} steps: µs of CPU a sample (samples/s)")
    print(f"{'round':>6} " + " ".join(f"{name:>18}" for name in everyone) + f" {'CPU / better peer':>18}")
    for round_ in range(args.rounds):
        # The order changes each round, so that a machine that gets slower or faster favours none of them.
        order = list(everyone) if round_ % 2 == 0 else list(everyone)[::-1]
        for name in order:
            runs[name].append(everyone[name](args, model))
        cells = [f"{runs[name][-1]['cpu']:.1f} ({runs[name][-1]['rate']:,.0f})" for name in everyone]
        ratio = ratios(runs, peers, "cpu", min)[-1]
        print(f"{round_ + 1:>6} " + " ".join(f"{cell:>18}" for cell in cells) + f" {ratio:>18.2f}", flush=True)
    cpu, rate = ratios(runs, peers, "cpu", min), ratios(runs, peers, "rate", max)
    print(f"median of the rounds, beside the better peer: CPU {statistics.median(cpu):.3f}, samples/s {statistics.median(rate):.3f}")
    stages = runs["zagros"][0]["split"]
    split = {stage: statistics.median(run["split"][stage] for run in runs["zagros"]) for stage in stages}
    print("zagros, µs a sample: " + ", ".join(f"{stage} {time:.2f}" for stage, time in split.items()) + "\n")


def main():
    args = arguments()
    peers = present(args)
    for model in args.models:
        compare(args, model, peers)


if __name__ == "__main__":
    main()
