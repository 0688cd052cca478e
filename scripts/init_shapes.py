#!/usr/bin/env python3
"""Ten data sets in ten shapes, each trained by `zagros init` and `zagros train` without editing, beside a hand-written job.

    scripts/init_shapes.py --zagros target/release/zagros --data data --work /tmp/shapes [--only NAME ...]

Needs pyarrow and numpy. `--data` has the folders adult/, movielens/ and quickstart/ (docs/quickstart.md). A shape whose real
data is not there is left out. The object store is a part of this script.

Both jobs of a shape read the same rows and hold out the same ones: those by time where init divides by time, else the same share.
"""

import argparse
import gzip
import json
import os
import pathlib
import subprocess
import time
import tomllib
import threading
import urllib.parse
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy
import pyarrow
import pyarrow.csv
import pyarrow.parquet

ADULT = ("age,workclass,fnlwgt,education,education_num,marital_status,occupation,relationship,race,sex,capital_gain,"
         "capital_loss,hours_per_week,native_country,income").split(",")
EXAMPLES = pathlib.Path(__file__).parent.parent / "examples"


def adult_table(data):
    text = (data / "adult/adult.data").read_text()
    rows = [line.split(", ") for line in text.splitlines() if line]
    columns = {name: [None if row[at] == "?" else row[at] for row in rows] for at, name in enumerate(ADULT)}
    numbers = ["age", "fnlwgt", "education_num", "capital_gain", "capital_loss", "hours_per_week"]
    return pyarrow.table({name: [int(value) for value in values] if name in numbers else values
                          for name, values in columns.items()})


def movielens_table(data):
    return pyarrow.csv.read_csv(data / "movielens/train.csv.gz")


def lists(table, *names):
    for name in names:
        values = [[part for part in (text or "").split("|") if part] for text in table[name].to_pylist()]
        table = table.set_column(table.schema.get_field_index(name), name, pyarrow.array(values, pyarrow.list_(pyarrow.string())))
    return table


def avazu_like(path, rows=200_000, seed=7):
    """Clicks of a planted model, in Avazu's columns, sorted by the hour. Returns the AUC of the planted model on the newest tenth."""
    random = numpy.random.default_rng(seed)
    hours = numpy.sort(random.integers(0, 240, rows))
    sizes = {"C1": 7, "banner_pos": 7, "site_id": 1500, "site_domain": 2000, "site_category": 22, "app_id": 1800, "app_domain": 150,
             "app_category": 25, "device_id": 30_000, "device_ip": 50_000, "device_model": 4000, "device_type": 5,
             "device_conn_type": 4, "C14": 2000, "C15": 8, "C16": 9, "C17": 400, "C18": 4, "C19": 65, "C20": 160, "C21": 60}
    values, logit = {}, 0.5 * numpy.sin(2 * numpy.pi * (hours % 24) / 24)
    factors = {}
    for name, size in sizes.items():
        # Few values are frequent, as in real logs.
        values[name] = (size * random.random(rows) ** 3).astype(int)
        logit += random.normal(0, 0.35, size)[values[name]]
        factors[name] = random.normal(0, 0.6, (size, 4))
    for one, other in [("site_id", "app_category"), ("C14", "device_type"), ("C17", "hour"), ("banner_pos", "C21")]:
        right = factors[other][values[other]] if other != "hour" else random.normal(0, 0.6, (24, 4))[hours % 24]
        logit += (factors[one][values[one]] * right).sum(axis=1)
    logit -= numpy.quantile(logit, 0.8)
    clicks = random.random(rows) < 1 / (1 + numpy.exp(-logit))
    hexadecimal = [name for name in sizes if sizes[name] > 20 and not name.startswith("C")]
    with open(path, "w") as file:
        file.write("id,click,hour," + ",".join(sizes) + "\n")
        for row in range(rows):
            hour = 14102100 + hours[row] // 24 * 100 + hours[row] % 24
            cells = [format(values[name][row] * 2654435761 % 2**32, "08x") if name in hexadecimal else str(values[name][row])
                     for name in sizes]
            file.write(f"{10**19 + row * 7919},{int(clicks[row])},{hour}," + ",".join(cells) + "\n")
    newest = slice(int(0.9 * rows), rows)
    return auc(clicks[newest], logit[newest])


def auc(clicks, scores):
    ranks = numpy.empty(len(scores))
    ranks[numpy.argsort(scores)] = numpy.arange(1, len(scores) + 1)
    positive = clicks.sum()
    return (ranks[clicks].sum() - positive * (positive + 1) / 2) / (positive * (len(scores) - positive))


def example(name):
    """The sections of `examples/NAME` but [data]."""
    text = (EXAMPLES / name).read_text()
    sections, kept = text.split("\n["), []
    for section in sections[1:]:
        if not section.startswith("data]"):
            kept.append("[" + section)
    return "\n".join(kept)


def start_store(folder):
    """Serves the files of a folder as s3://shapes/ml/NAME, and names the store in the environment."""
    files = {f"ml/{path.name}": path.read_bytes() for path in folder.iterdir()}

    class Store(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self):
            url = urllib.parse.urlparse(self.path)
            query, key = urllib.parse.parse_qs(url.query), url.path.removeprefix("/shapes").strip("/")
            if "list-type" in query:
                prefix = query.get("prefix", [""])[0]
                found = "".join(
                    f"<Contents><Key>{key}</Key><LastModified>2026-11-25T00:00:00.000Z</LastModified><ETag>&quot;{key}&quot;</ETag>"
                    f"<Size>{len(files[key])}</Size></Contents>" for key in sorted(files) if key.startswith(prefix))
                body = ('<?xml version="1.0" encoding="UTF-8"?><ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/">'
                        f"<Name>shapes</Name><IsTruncated>false</IsTruncated>{found}</ListBucketResult>").encode()
                return self.answer(200, body, {"Content-Type": "application/xml"})
            if key not in files:
                return self.answer(404, b"", {})
            whole, more = files[key], {"ETag": f'"{key}"', "Last-Modified": "Wed, 25 Nov 2026 00:00:00 GMT"}
            if wanted := self.headers.get("Range"):
                start, _, end = wanted.removeprefix("bytes=").partition("-")
                part = whole[int(start): int(end) + 1 if end else len(whole)]
                more["Content-Range"] = f"bytes {start}-{int(start) + len(part) - 1}/{len(whole)}"
                return self.answer(206, part, more)
            return self.answer(200, whole, more)

        do_HEAD = do_GET

        def answer(self, status, body, headers):
            self.send_response(status)
            for name, value in {**headers, "Content-Length": str(len(body))}.items():
                self.send_header(name, value)
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(body)

        def log_message(self, *arguments):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Store)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    os.environ.update(AWS_ENDPOINT_URL=f"http://127.0.0.1:{server.server_port}", AWS_ALLOW_HTTP="true", AWS_REGION="us-east-1",
                      AWS_ACCESS_KEY_ID="shapes", AWS_SECRET_ACCESS_KEY="shapes")


ADULT_DATA = "format = 'delimited'\ndelimiter = ','\nmissing = ['?']\n"
AVAZU_JOB = """
[features]
label = "click"
categorical = ["C1", "banner_pos", "site_id", "site_domain", "site_category", "app_id", "app_domain", "app_category", "device_id",
    "device_ip", "device_model", "device_type", "device_conn_type", "C14", "C15", "C16", "C17", "C18", "C19", "C20", "C21"]
[embedding]
dim = 16
[model]
kind = "dcnv2"
cross_layers = 2
hidden = [256, 128]
dropout = 0.3
[train]
batch_size = 1024
epochs = 20
early_stop = { metric = "auc", patience = 3 }
"""


def shapes(data, work):
    """Name, what it is, its data, and the hand-written job: [data] without parts and paths, and the other sections."""
    adult, movielens, quickstart = data / "adult/adult.data", data / "movielens/train.csv.gz", data / "quickstart/train.txt"
    if adult.exists():
        table = adult_table(data)
        names = ", ".join(f"'{name}'" for name in ADULT)
        job = example("adult.toml")
        yield "adult-csv", "Adult, original CSV", adult, ADULT_DATA + f"header = false\ntrim = true\ncolumns = [{names}]\n", job
        path = work / "adult.parquet"
        pyarrow.parquet.write_table(table, path, row_group_size=4000)
        yield "adult-parquet", "Adult, Parquet", path, "format = 'parquet'\n", job
        path = work / "adult.csv.zst"
        with pyarrow.CompressedOutputStream(str(path), "zstd") as out:
            pyarrow.csv.write_csv(table, out)
        yield "adult-zstd", "Adult, CSV with header, zstd", path, ADULT_DATA, job
        path = work / "adult.jsonl"
        with open(path, "w") as out:
            for row in table.to_pylist():
                person = {name: row.pop(name) for name in ("age", "sex", "race", "native_country")}
                out.write(json.dumps({"person": person, **row}) + "\n")
        nested = job
        for name in ("age", "sex", "race", "native_country"):
            nested = nested.replace(f'"{name}"', f'"person.{name}"')
        yield "adult-jsonl", "Adult, JSON lines with objects inside", path, "format = 'jsonl'\n", nested
    if movielens.exists():
        table, job = movielens_table(data), example("movielens.toml")
        csv = "format = 'delimited'\nshuffle_rows = 100_000\n"
        yield "movielens-gzip", "MovieLens, gzip CSV", movielens, csv, job
        path = work / "movielens.parquet"
        pyarrow.parquet.write_table(lists(table, "genres", "tags"), path, row_group_size=10_000)
        # A list has no separator.
        in_lists = job.replace('separator = "|", pooling', "pooling").replace('separator = "|"', 'pooling = "sum"')
        yield "movielens-parquet", "MovieLens, Parquet with lists", path, "format = 'parquet'\nshuffle_rows = 100_000\n", in_lists
        folder = work / "movielens-parts"
        folder.mkdir(exist_ok=True)
        lines = gzip.open(movielens, "rt").read().splitlines()
        for part in range(8):
            rows = lines[1 + part * len(lines) // 8: 1 + (part + 1) * len(lines) // 8]
            (folder / f"part-{part}.csv").write_text("\n".join([lines[0], *rows]) + "\n")
        yield "movielens-parts", "MovieLens, a folder of CSV parts", folder, csv, job
        start_store(folder)
        yield "movielens-s3", "MovieLens, objects in a store", "s3://shapes/ml/", csv, job
    path = work / "avazu.csv"
    best = avazu_like(path)
    yield "avazu", f"Avazu-like, generated; the planted model has {best:.4f}", path, "format = 'delimited'\n", AVAZU_JOB
    if quickstart.exists():
        yield "criteo", "Criteo's format, quickstart data", quickstart, "format = 'criteo'\n", example("quickstart.toml")


def run(zagros, folder, *arguments):
    ran = subprocess.run([zagros, *map(str, arguments)], cwd=folder, capture_output=True, text=True)
    if ran.returncode != 0:
        raise SystemExit(f"zagros {' '.join(map(str, arguments))} failed:\n{ran.stdout}{ran.stderr}")


def trained(zagros, folder, job):
    """The test AUC of a job, and its seconds."""
    started = time.time()
    run(zagros, folder, "train", job, "--fresh")
    summaries = sorted(folder.rglob("summary.json"), key=lambda path: path.stat().st_mtime)
    return json.loads(summaries[-1].read_text())["evaluation"]["auc"], time.time() - started


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--zagros", type=pathlib.Path, required=True)
    parser.add_argument("--data", type=pathlib.Path, required=True)
    parser.add_argument("--work", type=pathlib.Path, required=True)
    parser.add_argument("--only", nargs="*", default=[])
    options = parser.parse_args()
    zagros, data, work = options.zagros.resolve(), options.data.resolve(), options.work.resolve()
    work.mkdir(parents=True, exist_ok=True)
    print("| shape | `init` | hand-written |\n|---|---|---|", flush=True)
    for name, what, path, data_section, sections in shapes(data, work):
        if options.only and name not in options.only:
            continue
        folder = work / f"job-{name}"
        folder.mkdir(exist_ok=True)
        (folder / "init.toml").unlink(missing_ok=True)
        run(zagros, folder, "init", path, "-o", "init.toml")
        parts = tomllib.loads((folder / "init.toml").read_text())["data"]
        keys = ("time_column", "validation_from", "test_from", "test_fraction", "validation_share")
        parts = "".join(f"{key} = {json.dumps(parts[key])}\n" for key in keys if key in parts)
        (folder / "hand.toml").write_text(f"[data]\ntrain = '{path}'\n{data_section}{parts}\n{sections}")
        found, seconds = trained(zagros, folder, "init.toml")
        by_hand, hand_seconds = trained(zagros, folder, "hand.toml")
        by_time = ", by time" if "time_column" in parts else ""
        print(f"| {what}{by_time} | {found:.4f} ({seconds:.0f} s) | {by_hand:.4f} ({hand_seconds:.0f} s) |", flush=True)


if __name__ == "__main__":
    main()
