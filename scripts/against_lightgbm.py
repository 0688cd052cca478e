#!/usr/bin/env python3
"""The first try of Zagros beside LightGBM and a logistic regression, on any file that `zagros init` understands: a table, and its figures as JSON.

    scripts/against_lightgbm.py DATA [--valid FILE] [--test FILE] [--label COLUMN] [--zagros PROGRAM ...] [--python VENV/bin/python] [--out results.json]

Needs a Python with numpy, pyarrow, scikit-learn and lightgbm.

Rows. Those of DATA are divided once, and all programs get the same three files: without `--test` the newest tenth if `zagros init` finds a column of
times, else a random tenth with a fixed seed; without `--valid` the same of the rest. Files are Parquet; Zagros gets Criteo's layout as text, if DATA has it.

Programs. Zagros: `zagros init` on the training file and `zagros train` on its job, unedited except for the names of the three files. LightGBM: categories
as its own categories, or as out-of-fold means and counts; its defaults with early stopping, and the best by validation AUC of TUNED, chosen with the first
seed. Logistic regression: categories of ten rows and more, numbers standardised and in twentieths, C by validation AUC. What is a number, a category or a
list is read from the first program's job, so that all see the same columns, without those that `init` finds to tell the label.

Columns of the table: mean and deviation over the seeds; `choice` are the minutes of all fits among which a setting was chosen. Processor time and the
greatest memory are the kernel's, of one process for each fit, reading of the files included. `--cores` binds all programs to so many cores.
"""

import argparse
import datetime
import json
import os
import pathlib
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import tomllib

PEERS = pathlib.Path(__file__).with_name("lightgbm_peers.py")
ROUNDS, PATIENCE = 3000, 100
TUNED = [
    {},
    {"learning_rate": 0.03, "num_leaves": 15, "min_data_in_leaf": 20},
    {"learning_rate": 0.03, "num_leaves": 31, "min_data_in_leaf": 100},
    {"learning_rate": 0.03, "num_leaves": 127, "min_data_in_leaf": 100},
    {"learning_rate": 0.03, "num_leaves": 31, "min_data_in_leaf": 100, "feature_fraction": 0.7, "bagging_fraction": 0.8, "bagging_freq": 1,
     "lambda_l2": 10, "cat_smooth": 100, "cat_l2": 100},
    {"learning_rate": 0.03, "num_leaves": 8, "min_data_in_leaf": 100, "feature_fraction": 0.5, "bagging_fraction": 0.8, "bagging_freq": 1,
     "lambda_l2": 10, "cat_smooth": 100, "cat_l2": 100},
]
PENALTIES = [{"C": 0.001}, {"C": 0.01}, {"C": 0.1}, {"C": 1.0}]
DIVIDING = ("time_column", "validation_from", "test_from", "test_fraction", "validation_share")


def measure_program(command, folder):
    """The output of a program, and what it cost. A failure ends this script with the program's own message."""
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as errors:
        start = time.monotonic()
        child = subprocess.Popen([str(part) for part in command], cwd=folder, stdout=out, stderr=errors)
        _, status, usage = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
        cost = {"minutes": (time.monotonic() - start) / 60, "cpu": (usage.ru_utime + usage.ru_stime) / 60, "gib": usage.ru_maxrss / 2**20}
        out.seek(0), errors.seek(0)
        if child.returncode:
            sys.exit(f"{' '.join(map(str, command))}\nended with {child.returncode}:\n{errors.read()[-3000:]}")
        return out.read(), cost


def add_costs(one, other):
    return {"minutes": one["minutes"] + other["minutes"], "cpu": one["cpu"] + other["cpu"], "gib": max(one["gib"], other["gib"])}


def write_job(zagros, data, label, job, folder):
    """The job that `zagros init` writes, parsed; and what that cost."""
    job.unlink(missing_ok=True)
    _, cost = measure_program([zagros, "init", data, "-o", job, *(["--label", label] if label else [])], folder)
    return tomllib.loads(job.read_text()), cost


def describe_label(job):
    """The column of the label, and which texts are a click and which none."""
    label = job.get("features", {}).get("label", "label")
    label = {"column": label} if isinstance(label, str) else label
    if isinstance(label, list) or label.get("kind", "click") != "click":
        sys.exit("the label is none of two values; name such a column with --label")
    return {"positive": ["1"], "negative": ["0"], **label}


def describe_features(job):
    """What the columns are: numbers (and whether a logarithm suits them), categories, lists with their separator, parts of dates."""
    features, criteo = job.get("features", {}), job["data"]["format"] == "criteo"
    default = {"numeric": [{"column": f"I{n}", "log": True} for n in range(1, 14)], "categorical": [f"C{n}" for n in range(1, 27)]}
    lists = [features.get(key, default[key] if criteo else []) for key in ("numeric", "categorical")]
    numeric, categorical = ([{"column": item} if isinstance(item, str) else item for item in items] for items in lists)
    found = {"numbers": {}, "categories": [], "lists": {}, "dates": []}
    for item in numeric:
        if "encode" not in item:
            found["numbers"][item["column"]] = item.get("log", False)
    for item in categorical:
        if "date" in item:
            found["dates"].append([item["column"], item["date"]])
        elif "buckets" in item:
            found["numbers"].setdefault(item["column"], False)
        elif item.keys() & {"separator", "pooling", "sequence"}:
            found["lists"][item["column"]] = item.get("separator")
        elif "column" in item and item["column"] not in found["categories"]:
            found["categories"].append(item["column"])
    return found


def run_peer(args, work, folder, **spec):
    path = folder / "specification.json"
    path.write_text(json.dumps({"folder": str(folder), **spec}))
    output, cost = measure_program([args.python, PEERS, work, path], folder)
    return {**json.loads(output.strip().splitlines()[-1]), **cost}


def run_zagros(args, program, label, suffix, seed, folder):
    """`init` and `train` as a user would call them. Only the names of the held-out files are put in the place of the job's own division."""
    job = folder / "first.toml"
    _, cost = write_job(program, f"train{suffix}", label, job, folder)
    lines = [line for line in job.read_text().splitlines() if line.split("=")[0].strip() not in DIVIDING]
    job.write_text("\n".join(lines) + "\n")
    files = {"train": "train", "validation": "valid", "test": "test"}
    sets = [f"data.{key}={json.dumps(str(folder / (part + suffix)))}" for key, part in files.items()]
    sets += [f"train.seed={seed}", *args.sets]
    shutil.rmtree(folder / "runs", ignore_errors=True)
    _, training = measure_program([program, "train", job, "--fresh", *(part for key in sets for part in ("--set", key))], folder)
    (summary,) = (folder / "runs").glob("*/summary.json")
    found = json.loads(summary.read_text())
    parts = {"valid": found["validation"], "test": found.get("test") or found["evaluation"]}
    return {**{part: {key: measures[key] for key in ("auc", "logloss")} for part, measures in parts.items()}, **add_costs(cost, training)}


def choose_setting(run, settings, seeds):
    """The setting with the best validation AUC of the first seed, its runs with all seeds, and the minutes of the choice."""
    tried = [(setting, run(setting, seeds[0])) for setting in settings]
    setting, first = max(tried, key=lambda pair: pair[1]["valid"]["auc"])
    choice = sum(each["minutes"] for _, each in tried) if len(tried) > 1 else 0
    return setting, [first, *(run(setting, seed) for seed in seeds[1:])], choice


def format_figures(figures, digits=4):
    mean, deviation = statistics.mean(figures), statistics.stdev(figures) if len(figures) > 1 else None
    text = [f"{figure:.{digits}f}".replace("0.", ".", 1) for figure in (mean, deviation) if figure is not None]
    return " ± ".join(text)


def format_row(row):
    runs = row["runs"]
    cells = [row["program"], row["setting"], format_figures([run["test"]["auc"] for run in runs]), format_figures([run["test"]["logloss"] for run in runs]),
             format_figures([run["valid"]["auc"] for run in runs])]
    cells += [f"{statistics.mean(run[key] for run in runs):.2f}" for key in ("minutes", "cpu")]
    return "| " + " | ".join([*cells, f"{row['choice']:.2f}", f"{max(run['gib'] for run in runs):.2f}"]) + " |"


def list_programs(args, features, label, suffix, folder):
    """Name, what runs it with a setting and a seed, the settings to choose from, and the seeds."""
    spec = {"label": label, "features": features, "rounds": ROUNDS, "patience": PATIENCE}
    for program in args.zagros:
        name = "Zagros" if len(args.zagros) == 1 else f"Zagros {program}"
        yield name, lambda _, seed, program=program: run_zagros(args, program, label["column"], suffix, seed, folder), [{}], args.seeds
    for encoding, what in (("native", "own categories"), ("target", "out-of-fold means")):

        def fit_trees(parameters, seed, encoding=encoding):
            return run_peer(args, "trees", folder, **spec, encoding=encoding, parameters=parameters, seed=seed)

        # Without a draw, each seed is the same.
        yield f"LightGBM, {what}, defaults", fit_trees, TUNED[:1], args.seeds if encoding == "target" else args.seeds[:1]
        yield f"LightGBM, {what}, tuned", fit_trees, TUNED[1:], args.seeds
    yield "logistic regression", lambda parameters, _: run_peer(args, "logistic", folder, **spec, parameters=parameters), PENALTIES, args.seeds[:1]


def describe_machine(args):
    processor = next((line.split(":")[1].strip() for line in pathlib.Path("/proc/cpuinfo").read_text().splitlines() if "model name" in line), "")
    code = "import importlib.metadata as m\nfor p in ('numpy', 'pyarrow', 'scikit-learn', 'lightgbm'): print(p, m.version(p))"
    versions = subprocess.run([args.python, "-c", code], capture_output=True, text=True, check=True).stdout.splitlines()
    versions += [subprocess.run([program, "--version"], capture_output=True, text=True, check=True).stdout.strip() for program in args.zagros]
    return {"processor": processor or platform.machine(), "cores": len(os.sched_getaffinity(0)), "python": platform.python_version(), "versions": versions}


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=pathlib.Path)
    parser.add_argument("--valid", type=pathlib.Path, help="rows that decide when to stop and which setting is taken")
    parser.add_argument("--test", type=pathlib.Path, help="rows that are scored")
    parser.add_argument("--label", help="column of the label, if `zagros init` would take another")
    parser.add_argument("--zagros", nargs="+", type=pathlib.Path, default=[pathlib.Path("target/release/zagros")], help="several are compared")
    parser.add_argument("--set", action="append", default=[], dest="sets", metavar="KEY=VALUE", help="for each run of Zagros, which is then no first try")
    parser.add_argument("--python", default=sys.executable, help="the Python that has the packages")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--only", nargs="+", default=[""], help="programs whose names contain one of these texts")
    parser.add_argument("--cores", type=int, help="cores that each program may use; default: all")
    parser.add_argument("--out", type=pathlib.Path, help="file for the figures, as JSON")
    args = parser.parse_args()
    args.zagros = [program.resolve() for program in args.zagros]
    args.python = os.path.abspath(args.python) if "/" in args.python else args.python
    return args


def main():
    args = parse_arguments()
    if args.cores:
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:args.cores])
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        job, _ = write_job(args.zagros[0], args.data.resolve(), args.label, folder / "data.toml", folder)
        label, time_column, data = describe_label(job), job["data"].get("time_column"), job["data"]
        paths = {part: path and str(path.resolve()) for part, path in (("path", args.data), ("valid", args.valid), ("test", args.test))}
        split = run_peer(args, "split", folder, **paths, data=data, label=label, time_column=time_column)
        suffix = ".txt" if data["format"] == "criteo" else ".parquet"
        features = describe_features(write_job(args.zagros[0], f"train{suffix}", label["column"], folder / "first.toml", folder)[0])
        rule = f"newest by {time_column}" if time_column else "random"
        parts = ", ".join(f"{part} {found['rows']:,} ({found['share']:.3f})" for part, found in split["parts"].items())
        print(f"{args.data}: rows (share of clicks) {parts}; held out where no file is given: {rule}; rows of another label, left out: {split['skipped']}")
        truth = args.test and args.test.with_name("truth.json")
        if truth and truth.exists():
            print(f"best reachable on the test part: {json.loads(truth.read_text())['best_on_test']}")
        print("\n| program | setting | test AUC | test logloss | valid AUC | minutes | CPU minutes | choice | GiB |\n|---|---|---|---|---|---|---|---|---|", flush=True)
        rows = []
        for name, run, settings, seeds in list_programs(args, features, label, suffix, folder):
            if any(text in name for text in args.only):
                setting, runs, choice = choose_setting(run, settings, seeds)
                text = ", ".join(f"{key} {value}" for key, value in setting.items()) or " ".join(args.sets if "Zagros" in name else [])
                rows.append({"program": name, "setting": text, "seeds": seeds, "choice": choice, "runs": runs})
                print(format_row(rows[-1]), flush=True)
    if args.out:
        report = {"command": sys.argv, "date": datetime.date.today().isoformat(), "machine": describe_machine(args), "split": {**split, "rule": rule}}
        args.out.write_text(json.dumps({**report, "features": features, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
