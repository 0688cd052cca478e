#!/usr/bin/env python3
"""Train the benchmark's workload with Zagros and with a peer in turn, and print the ratios.

A pair is one run of each, one after the other, so that what else the machine does meets both; the median over the
pairs is the figure to quote. The peer's script must take `--data`, `--model`, `--threads`, `--steps` and print one
line of JSON with `cpu_us_per_sample` and `samples_s`; what follows `--` on the command line goes to it as it is.

    python3 scripts/bench_peers.py --data FOLDER --peer torch_train.py --python VENV/bin/python -- --tables stacked
"""

import argparse
import json
import statistics
import subprocess
import sys

DEADLINE_SECONDS = 600


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True, help="folder of the workload's files, as the peer's generator wrote them")
    parser.add_argument("--peer", required=True, help="the peer's script")
    parser.add_argument("--python", default=sys.executable, help="the Python that has what the peer needs")
    parser.add_argument("--zagros", default="target/release/zagros", help="the zagros binary")
    parser.add_argument("--models", nargs="+", default=["dlrm", "ffnn"], choices=["dlrm", "ffnn"])
    parser.add_argument("--threads", type=int, default=1, help="threads of the dense network, in both")
    parser.add_argument("--steps", type=int, default=40, help="counted steps of a run")
    parser.add_argument("--pairs", type=int, default=5, help="runs of each, in turn")
    parser.add_argument("rest", nargs="*", help="for the peer alone, after --")
    return parser.parse_args()


def last_json(command):
    """What a program says on its last line, or an end with its own words."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_SECONDS, check=False)
    except FileNotFoundError:
        sys.exit(f"{command[0]}: no such program; see --zagros and --python")
    except subprocess.TimeoutExpired:
        sys.exit(f"{command[0]}: no end after {DEADLINE_SECONDS} s; ask for fewer --steps")
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)}\nended with {done.returncode}:\n{done.stderr}")
    return json.loads(done.stdout.strip().splitlines()[-1])


def ours(args, model):
    command = [args.zagros, "bench", "train", "--data", args.data, "--model", model, "--json"]
    found = last_json([*command, "--steps", str(args.steps), "--threads", str(args.threads)])
    return {"cpu": found["cpu_us_per_sample"], "rate": found["samples_per_second"], "split": found["split_us_per_sample"]}


def peer(args, model):
    command = [args.python, args.peer, "--data", args.data, "--model", model]
    found = last_json([*command, "--steps", str(args.steps), "--threads", str(args.threads), *args.rest])
    return {"cpu": found["cpu_us_per_sample"], "rate": found["samples_s"]}


def compare(args, model):
    """One line a pair, then the medians."""
    runs = {peer: [], ours: []}
    print(f"{model}, {args.threads} thread(s), {args.steps} steps: µs of CPU a sample (samples/s)")
    print(f"{'pair':>6} {'peer':>18} {'zagros':>18} {'ratio of CPU':>13}")
    for pair in range(args.pairs):
        # Who goes first changes, so that a machine that gets slower or faster favours neither.
        for run in (peer, ours) if pair % 2 == 0 else (ours, peer):
            runs[run].append(run(args, model))
        them, us = runs[peer][-1], runs[ours][-1]
        cells = [f"{found['cpu']:.1f} ({found['rate']:,.0f})" for found in (them, us)]
        print(f"{pair + 1:>6} {cells[0]:>18} {cells[1]:>18} {us['cpu'] / them['cpu']:>13.2f}", flush=True)
    ratios = [us["cpu"] / them["cpu"] for us, them in zip(runs[ours], runs[peer], strict=True)]
    rates = [us["rate"] / them["rate"] for us, them in zip(runs[ours], runs[peer], strict=True)]
    print(f"median of the pairs' ratios: CPU {statistics.median(ratios):.3f}, samples/s {statistics.median(rates):.3f}")
    stages = runs[ours][0]["split"]
    split = {stage: statistics.median(run["split"][stage] for run in runs[ours]) for stage in stages}
    print("zagros, µs a sample: " + ", ".join(f"{stage} {time:.2f}" for stage, time in split.items()) + "\n")


def main():
    args = arguments()
    for model in args.models:
        compare(args, model)


if __name__ == "__main__":
    main()
