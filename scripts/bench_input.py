#!/usr/bin/env python3
"""Is a training input-bound, and what does shuffling cost? Measured with `zagros train` on generated rows of Criteo's columns.

    scripts/bench_input.py --zagros target/release/zagros --work /tmp/input stages    # DLRM on 4 threads, from CSV, Parquet and Arrow
    scripts/bench_input.py --zagros target/release/zagros --work /tmp/input shuffle   # no window, the default one, one as large as the file

Needs pyarrow. `stages` prints the seconds of each stage in summary.json: `waiting` is the time for which the training thread had no batch. If it is
a small share of the run, reading keeps up. `shuffle` prints rows a second and the largest resident memory of the process, of a small network.
"""

import argparse
import json
import pathlib
import shutil
import subprocess

import pyarrow.csv
import pyarrow.feather
import pyarrow.parquet

NAMES = ["label"] + [f"I{n}" for n in range(1, 14)] + [f"C{n}" for n in range(1, 27)]
DLRM = "[model]\nkind = 'dlrm'\nbottom = [512, 256]\ntop = [512, 256]\n"
SMALL = "[model]\nkind = 'ffnn'\nhidden = [8]\n"


def write_rows(zagros, work, rows):
    """The same rows as CSV, Parquet and Arrow, in row groups of 50,000."""
    csv = work / "rows.csv"
    if csv.exists():
        return
    folder = work / "generated"
    shutil.rmtree(folder, ignore_errors=True)
    subprocess.run([zagros, "data", "generate", folder, "--rows", str(rows), "--test-rows", "1000"], check=True, capture_output=True)
    texts = {name: pyarrow.string() for name in NAMES[14:]}
    table = pyarrow.csv.read_csv(folder / "train.txt", pyarrow.csv.ReadOptions(column_names=NAMES), pyarrow.csv.ParseOptions(delimiter="\t"),
                                 pyarrow.csv.ConvertOptions(column_types=texts, strings_can_be_null=True))
    pyarrow.parquet.write_table(table, work / "rows.parquet", row_group_size=50_000)
    pyarrow.feather.write_feather(table, str(work / "rows.arrow"), compression="lz4", chunksize=50_000)
    pyarrow.csv.write_csv(table, csv, pyarrow.csv.WriteOptions(quoting_style="none"))


def train(zagros, work, format, end, model, threads, more=""):
    """The summary of a training on `rows.END`."""
    listed = lambda names: ", ".join(f"'{name}'" for name in names)
    numbers = ", ".join(f"{{ column = '{name}', log = true }}" for name in NAMES[1:14])
    job = (f"[data]\nformat = '{format}'\ntrain = 'rows.{end}'\n{more}\n[features]\nlabel = 'label'\nnumeric = [{numbers}]\n"
           f"categorical = [{listed(NAMES[14:])}]\n[embedding]\ndim = 16\n{model}[train]\nbatch_size = 4096\nthreads = {threads}\n"
           "[output]\nsave_model = false\n")
    (work / "job.toml").write_text(job)
    shutil.rmtree(work / "runs", ignore_errors=True)
    ran = subprocess.run([zagros, "train", "job.toml", "--fresh"], cwd=work, capture_output=True, text=True)
    if ran.returncode != 0:
        raise SystemExit(f"zagros train failed:\n{job}\n{ran.stdout}{ran.stderr}")
    return json.loads(next((work / "runs").rglob("summary.json")).read_text())


def stages(zagros, work, threads):
    names = ["parse", "waiting", "dense", "lookup", "gather", "dedup", "scatter", "push"]
    print(f"| DLRM, {threads} threads | samples/s | seconds | " + " | ".join(names) + " | waiting, share |")
    print("|" + "---|" * (len(names) + 4))
    for format, end in [("delimited", "csv"), ("parquet", "parquet"), ("arrow", "arrow")]:
        found = train(zagros, work, format, end, DLRM, threads)
        seconds = " | ".join(f"{found['stages'][name]:.2f}" for name in names)
        share = found["stages"]["waiting"] / found["seconds"]
        print(f"| {end} | {found['samples_per_second']:,.0f} | {found['seconds']:.1f} | {seconds} | {100 * share:.1f} % |", flush=True)


def shuffle(zagros, work, threads, rows):
    print("| format | window, rows | samples/s | peak memory, MB |\n|---|---|---|---|")
    for format, end in [("delimited", "csv"), ("parquet", "parquet")]:
        for name, more in [("none", "shuffle_rows = 0"), ("default", ""), (f"{rows:,}, all", f"shuffle_rows = {rows}")]:
            found = train(zagros, work, format, end, SMALL, threads, more)
            memory = found["peak_rss_bytes"] / 1e6
            print(f"| {end} | {name} | {found['samples_per_second']:,.0f} | {memory:,.0f} |", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["stages", "shuffle"])
    parser.add_argument("--zagros", type=pathlib.Path, required=True)
    parser.add_argument("--work", type=pathlib.Path, required=True)
    parser.add_argument("--rows", type=int, default=300_000)
    parser.add_argument("--threads", type=int, default=4)
    options = parser.parse_args()
    zagros, work = options.zagros.resolve(), options.work.resolve()
    work.mkdir(parents=True, exist_ok=True)
    write_rows(zagros, work, options.rows)
    if options.what == "stages":
        stages(zagros, work, options.threads)
    else:
        shuffle(zagros, work, options.threads, options.rows)


if __name__ == "__main__":
    main()
