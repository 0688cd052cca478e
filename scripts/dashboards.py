#!/usr/bin/env python3
"""Writes Grafana's dashboards from the descriptions below: dashboards.py [--check]

With --check nothing is written, and a dashboard that differs from its description is an error. A test runs that, and another
runs every query against a Prometheus that scrapes a real cluster.
"""

import json
import sys
from pathlib import Path

FOLDER = Path(__file__).resolve().parent.parent / "monitoring" / "grafana" / "dashboards"
SOURCE = {"type": "prometheus", "uid": "${datasource}"}
RATE = "[$__rate_interval]"
PLAIN, GOOD, WARN, BAD = "blue", "green", "orange", "red"


def row(title):
    return {"type": "row", "title": title}


def panel(kind, title, unit, description, *queries, width=8, steps=None, top=None, **options):
    """A panel; queries are (expression, legend), steps are (from, colour) with the first from None."""
    return {"kind": kind, "title": title, "unit": unit, "description": description, "queries": queries, "width": width,
            "steps": steps, "top": top, "options": options}


def stat(title, unit, description, query, steps=None, width=4, legend="", **options):
    """A number. With `graph` also its curve, with a legend also the name of each."""
    return panel("stat", title, unit, description, (query, legend), width=width, steps=steps, **options)


def lines(title, unit, description, *queries, width=8, **options):
    return panel("timeseries", title, unit, description, *queries, width=width, **options)


def stacked(title, unit, description, *queries, width=8, **options):
    return panel("timeseries", title, unit, description, *queries, width=width, stack=True, **options)


def quantiles(name, by, where, legend, which=(0.5, 0.99)):
    """Quantiles of a histogram, one query each."""
    def of(q):
        return f"histogram_quantile({q}, sum by ({by}, le) (rate({name}_bucket{{{where}}}{RATE})))"
    return [(of(q), f"{legend} p{round(q * 100)}") for q in which]


def machine(role, legend):
    """The panels of every process."""
    where = f'run="$run", role=~"{role}"'
    return [
        row("Machine"),
        lines("Processor", "short", "Cores in use.", (f"rate(process_cpu_seconds_total{{{where}}}{RATE})", legend)),
        lines("Memory", "bytes", "Resident memory of the process.",
              (f"process_resident_memory_bytes{{{where}}}", legend)),
        lines("Open files", "short", "Open file descriptors, connections among them, and how many may be.",
              (f"process_open_fds{{{where}}}", legend), (f"max(process_max_fds{{{where}}})", "limit")),
    ]


CLUSTER = [
    row("Is it well?"),
    stat("Alerts", "short", "Alerts that fire for this run; /alerts of Prometheus says which, docs/runbook.md what to do.",
         'count(ALERTS{alertstate="firing", run="$run"}) or vector(0)', [(None, GOOD), (1, BAD)]),
    stat("Roles that do not answer", "short", "Coordinator, embedding servers and dense workers whose scrape failed.",
         'count(up{job="zagros", run="$run"}) - sum(up{job="zagros", run="$run"})', [(None, GOOD), (1, BAD)]),
    stat("Samples a second", "short", "Samples that all workers train on.", 'run:zagros_worker_samples:rate1m{run="$run"}',
         graph=True),
    stat("Waiting", "percentunit", "Largest share of its time that a worker had no batch to step on.",
         'max(run_index:zagros_worker_waiting:ratio_rate1m{run="$run"})', [(None, GOOD), (0.25, WARN), (0.5, BAD)]),
    stat("Age of the checkpoint", "s", "Since the newest checkpoint: what a fault would cost now.",
         'run:zagros_checkpoint_age_seconds{run="$run"}', [(None, GOOD), (1800, WARN), (3600, BAD)]),
    stat("Free disk", "percentunit", "Free share of the fullest disk that a role writes to.",
         'min(run_disk:zagros_disk_free:ratio{run="$run"})', [(None, BAD), (0.1, WARN), (0.2, GOOD)]),
    row("Does it learn?"),
    lines("Loss", "short", "Mean loss of the last batch, nats, by worker.",
          ('zagros_worker_loss{run="$run"}', "worker {{index}}")),
    lines("AUC of held-out parts", "short", "Area under the ROC curve of the last evaluation.",
          ('max by (part) (zagros_worker_auc{run="$run"})', "{{part}}")),
    lines("Progress of the epoch", "percentunit", "Splits of this epoch that are complete.",
          ('zagros_coordinator_splits_done{run="$run"} / zagros_coordinator_splits{run="$run"}', "epoch"), top=1),
    row("Is it fast?"),
    lines("Samples a second", "short", "By worker.",
          (f'rate(zagros_worker_samples_total{{run="$run"}}{RATE})', "worker {{index}}")),
    lines("Time of a step", "s", "Gather, dense network and scatter, all workers.",
          *quantiles("zagros_worker_step_seconds", "run", 'run="$run"', "step")),
    lines("Own time of a step", "s", "A worker's part of a step without waiting for the others. The highest line is the straggler.",
          ('run_index:zagros_worker_own_step_seconds:mean5m{run="$run"}', "worker {{index}}")),
    lines("Staleness and its bound", "short", "Unacknowledged batches at a lookup, by worker, and how many there may be.",
          ('zagros_worker_staleness_batches{run="$run"}', "worker {{index}}"),
          ('max(zagros_worker_staleness_bound_batches{run="$run"})', "bound")),
    lines("Waiting for a server", "s", "How long the oldest unanswered request to each server has waited.",
          ('max by (server) (zagros_worker_server_wait_seconds{run="$run"})', "server {{server}}")),
    lines("Lookups and pushes", "s", "99 % of requests are answered within this, by server.",
          ('run_server_call:zagros_embedding_request_seconds:p99_5m{run="$run", call=~"lookup|push"}',
           "server {{server}} {{call}}")),
    row("What do the servers hold?"),
    stacked("Rows in memory", "short", "By server.",
            ('sum by (server) (zagros_embedding_table_rows{run="$run"})', "server {{server}}")),
    stacked("Bytes in memory", "bytes", "Weights, optimiser state and index, by server.",
            ('sum by (server) (zagros_embedding_table_bytes{run="$run"})', "server {{server}}")),
    lines("Hit rate", "percentunit", "Looked up ids whose rows were in memory, by server.",
          ('run_server:zagros_embedding_hits:ratio_rate5m{run="$run"}', "server {{server}}"), top=1),
    *machine("coordinator|server|worker", "{{role}} {{index}}"),
]

HERE = 'run="$run", server=~"$server"'
EMBEDDING = [
    row("Requests: rate, errors, duration"),
    lines("Requests a second", "reqps", "Refused ones included, by kind of call.",
          (f"sum by (call) (rate(zagros_embedding_requests_total{{{HERE}}}{RATE}))", "{{call}}")),
    lines("Refusals a second", "reqps", "By kind. `moved` is ordinary when buckets move, the others are not.",
          (f"sum by (kind) (rate(zagros_embedding_refusals_total{{{HERE}}}{RATE}))", "{{kind}}")),
    lines("Duration", "s", "From a decoded request to its answer.",
          *quantiles("zagros_embedding_request_seconds", "call", HERE + ', call=~"lookup|push"', "{{call}}")),
    lines("Rows of a request", "short", "How many rows a request names.",
          *quantiles("zagros_embedding_request_rows", "call", HERE + ', call=~"lookup|push"', "{{call}}")),
    lines("Staleness of pushes", "short", "Earlier batches in flight when the rows of a pushed batch were looked up.",
          *quantiles("zagros_embedding_push_staleness_batches", "server", HERE, "server {{server}}")),
    lines("Pushes applied before", "reqps", "Retries of pushes that had arrived, answered as duplicates.",
          (f"sum by (server) (rate(zagros_embedding_duplicates_total{{{HERE}}}{RATE}))", "server {{server}}")),
    row("Tables"),
    stacked("Rows in memory", "short", "By table.", (f"sum by (table) (zagros_embedding_table_rows{{{HERE}}})", "{{table}}")),
    stacked("Bytes in memory", "bytes", "By table.", (f"sum by (table) (zagros_embedding_table_bytes{{{HERE}}})", "{{table}}")),
    lines("Hit rate", "percentunit", "Looked up ids whose rows were in memory.",
          (f"run_server:zagros_embedding_hits:ratio_rate5m{{{HERE}}}", "server {{server}}"), top=1),
    lines("Coming and going", "rowsps", "Rows by what became of them.",
          (f'sum by (what) (rate(zagros_embedding_table_ids_total{{{HERE}, what!~"hit|miss|hinted|ready|late"}}{RATE}))', "{{what}}")),
    lines("Rows of requests", "rowsps", "By what became of them; `skipped` are gradients that are not finite.",
          (f"sum by (what) (rate(zagros_embedding_rows_total{{{HERE}}}{RATE}))", "{{what}}")),
    lines("Waiting for locks", "percentunit", "Share of a core that requests spend waiting for a locked part of a table.",
          (f"sum by (server) (rate(zagros_embedding_table_lock_wait_seconds_total{{{HERE}}}{RATE}))", "server {{server}}")),
    row("Cold tier"),
    lines("Duration of batched calls", "s", "99 % of reads and writes of the cold tier end within this.",
          *quantiles("zagros_embedding_cold_call_seconds", "call", HERE, "{{call}}", [0.99])),
    lines("Rows read and written", "rowsps", "Rows asked from and written to the cold tier.",
          (f"sum by (call) (rate(zagros_embedding_cold_rows_total{{{HERE}}}{RATE}))", "{{call}}")),
    lines("Reads of its files a second", "iops", "Pieces of files; one piece may have several rows.",
          (f"sum by (server) (rate(zagros_embedding_cold_reads_total{{{HERE}}}{RATE}))", "server {{server}}")),
    lines("Reads under way", "short", "Pieces of files that requests have asked for and the disk has not yet answered.",
          (f"zagros_embedding_cold_reads_under_way{{{HERE}}}", "server {{server}}")),
    lines("Write amplification", "short", "Bytes appended and moved for each byte of rows that left memory.",
          (f'sum by (server) (rate(zagros_embedding_cold_written_bytes_total{{{HERE}, what!="row"}}{RATE}))'
           f' / sum by (server) (rate(zagros_embedding_cold_written_bytes_total{{{HERE}, what="row"}}{RATE}))', "server {{server}}")),
    lines("Bytes of its index", "bytes", "In memory, a part of `cluster.memory`.",
          (f"zagros_embedding_cold_index_bytes{{{HERE}}}", "server {{server}}")),
    lines("Rows", "short", "Rows in the cold tier, about; void copies are among them.",
          (f"zagros_embedding_cold_rows{{{HERE}}}", "server {{server}}")),
    lines("Bytes", "bytes", "Size of the cold tier's files, and the bytes of records in them that are no rows any more.",
          (f"zagros_embedding_cold_bytes{{{HERE}}}", "server {{server}}"),
          (f"zagros_embedding_cold_dead_bytes{{{HERE}}}", "server {{server}} dead")),
    lines("Compaction by writers", "Bps", "Old records that writers compact themselves, because compaction is behind: writes to the cold tier are slower then.",
          (f"sum by (server) (rate(zagros_embedding_cold_assisted_bytes_total{{{HERE}}}{RATE}))", "server {{server}}")),
    lines("Compactions that failed", "short", "Files that cannot be read or written while they are compacted. The server's log says why.",
          (f"increase(zagros_embedding_cold_compaction_failures_total{{{HERE}}}{RATE})", "server {{server}}")),
    lines("Free bytes of its disk", "bytes", "Free bytes of the file system, and its size.",
          (f"zagros_embedding_cold_disk_free_bytes{{{HERE}}}", "server {{server}} free"),
          (f"zagros_embedding_cold_disk_size_bytes{{{HERE}}}", "server {{server}} size")),
    lines("Lookahead, rows a second", "rowsps",
          "Ids of hints, rows that hints brought to memory (ready), and rows that lookups had to read from the cold tier themselves (late).",
          (f'sum by (what) (rate(zagros_embedding_table_ids_total{{{HERE}, what=~"hinted|ready|late"}}{RATE}))', "{{what}}")),
    *machine("server", "server {{index}}"),
]

MINE = 'run="$run", index=~"$index"'
WORKER = [
    row("Is it well?"),
    stat("Samples a second", "short", "Of the chosen workers.", f"sum(rate(zagros_worker_samples_total{{{MINE}}}{RATE}))", graph=True),
    stat("Loss", "short", "Mean loss of the last batch, nats; mean of the chosen workers.", f"avg(zagros_worker_loss{{{MINE}}})",
         graph=True),
    stat("Steps left out", "short", "Steps whose loss or gradients were not finite, since the start.",
         f"sum(zagros_worker_skipped_steps_total{{{MINE}}})", [(None, GOOD), (1, BAD)]),
    stat("Rows skipped", "short", "Malformed rows, since the start.", f"sum(zagros_worker_bad_rows_total{{{MINE}}})",
         [(None, GOOD), (1, WARN)]),
    stat("Age of the checkpoint", "s", "Of the newest one.", 'run:zagros_checkpoint_age_seconds{run="$run"}',
         [(None, GOOD), (1800, WARN), (3600, BAD)]),
    stat("Failed checkpoints", "short", "Since the start; training went on.",
         'sum(zagros_worker_checkpoint_failures_total{run="$run"})', [(None, GOOD), (1, BAD)]),
    row("Where does its time go?"),
    stacked("Time of the training thread", "percentunit", "Seconds a second in the stages that follow each other: 1 is all of the time.",
            (f'sum by (stage) (rate(zagros_worker_stage_seconds_total{{{MINE}, '
             f'stage=~"waiting|gather|dense|scatter|reduce"}}{RATE}))', "{{stage}}"), width=12),
    stacked("Work beside it", "percentunit", "Seconds a second in the stages that overlap with training; more than 1 is several at a time.",
            (f'sum by (stage) (rate(zagros_worker_stage_seconds_total{{{MINE}, stage=~"parse|dedup|lookup|push"}}{RATE}))',
             "{{stage}}"), width=12),
    lines("Time of a step", "s", "Gather, dense network and scatter.",
          *quantiles("zagros_worker_step_seconds", "index", MINE, "worker {{index}}")),
    lines("Own time of a step", "s", "Without waiting for the other workers, the mean over 5 minutes.",
          (f"run_index:zagros_worker_own_step_seconds:mean5m{{{MINE}}}", "worker {{index}}")),
    lines("Steps a second", "short", "By worker.", (f"rate(zagros_worker_steps_total{{{MINE}}}{RATE})", "worker {{index}}")),
    row("Embedding servers, as it sees them"),
    lines("Staleness and its bound", "short", "Unacknowledged batches at a lookup: last, mean and bound.",
          (f"zagros_worker_staleness_batches{{{MINE}}}", "worker {{index}}"),
          (f"zagros_worker_staleness_mean_batches{{{MINE}}}", "worker {{index}} mean"),
          (f"zagros_worker_staleness_max_batches{{{MINE}}}", "worker {{index}} largest"),
          (f"zagros_worker_staleness_bound_batches{{{MINE}}}", "worker {{index}} bound")),
    lines("Lookups", "s", "From asking for a batch's rows until every server has answered.",
          *quantiles("zagros_client_lookup_seconds", "index", MINE, "worker {{index}}")),
    lines("Pushes", "s", "From pushing a batch's gradients until every server has acknowledged.",
          *quantiles("zagros_client_push_seconds", "index", MINE, "worker {{index}}")),
    lines("Waiting for a server", "s", "How long the oldest unanswered request to each server has waited.",
          (f"max by (server) (zagros_worker_server_wait_seconds{{{MINE}}})", "server {{server}}")),
    lines("Bytes", "Bps", "Rows received and gradients sent.",
          (f"sum by (call) (rate(zagros_client_bytes_total{{{MINE}}}{RATE}))", "{{call}}")),
    lines("Retries", "reqps", "Requests sent again, and lookups that wait for their answer.",
          (f"sum by (call) (rate(zagros_client_retries_total{{{MINE}}}{RATE}))", "{{call}} retries"),
          (f"zagros_worker_lookups_in_flight{{{MINE}}}", "worker {{index}} lookups in flight")),
    row("Does it learn?"),
    lines("Loss", "short", "Mean loss of the last batch, nats.", (f"zagros_worker_loss{{{MINE}}}", "worker {{index}}"), width=6),
    lines("AUC", "short", "Of held-out parts; within groups where the job names them.",
          ('max by (part) (zagros_worker_auc{run="$run"})', "{{part}}"),
          ('max by (part) (zagros_worker_gauc{run="$run"})', "{{part}}, within groups"), width=6),
    lines("Logloss", "short", "Of held-out parts, nats, and over that of the positive rate.",
          ('max by (part) (zagros_worker_logloss{run="$run"})', "{{part}}"),
          ('max by (part) (zagros_worker_normalised_entropy{run="$run"})', "{{part}} normalised"), width=6),
    lines("Calibration", "short", "Predicted clicks divided by real ones; 1 is right.",
          ('max by (part) (zagros_worker_calibration{run="$run"})', "{{part}}"), width=6),
    row("Checkpoints"),
    lines("Checkpoints", "short", "Written since the start.", ('zagros_worker_checkpoints_total{run="$run"}', "worker {{index}}"), width=6),
    lines("Step of the newest", "short", "And the step that training is at.",
          ('max(zagros_worker_checkpoint_step{run="$run"})', "checkpoint"),
          ('max(zagros_worker_steps_total{run="$run"})', "training"), width=6),
    lines("Pause", "s", "How long training was paused for a checkpoint, the mean since the start.",
          ('sum(zagros_worker_checkpoint_pause_seconds_sum{run="$run"})'
           ' / sum(zagros_worker_checkpoint_pause_seconds_count{run="$run"})', "mean pause"), width=6),
    lines("Free bytes of the run folder's disk", "bytes", "Free bytes of the file system, and its size.",
          ('zagros_worker_run_disk_free_bytes{run="$run"}', "free"),
          ('zagros_worker_run_disk_size_bytes{run="$run"}', "size"), width=6),
    *machine("worker", "worker {{index}}"),
]

COORDINATOR = [
    row("Who is there?"),
    stat("Embedding servers missing", "short", "That the job asks for and that are not alive.",
         'sum(zagros_coordinator_members_expected{run="$run", member_role="embedding server"})'
         ' - sum(zagros_coordinator_members{run="$run", member_role="embedding server", state="alive"})',
         [(None, GOOD), (1, BAD)], width=6),
    stat("Dense workers missing", "short", "That the job asks for and that are not alive.",
         'sum(zagros_coordinator_members_expected{run="$run", member_role="dense worker"})'
         ' - sum(zagros_coordinator_members{run="$run", member_role="dense worker", state="alive"})',
         [(None, GOOD), (1, BAD)], width=6),
    stat("Expired leases", "short", "Members lost after a lease of silence, since the start.",
         'zagros_coordinator_expired_leases_total{run="$run"}', [(None, GOOD), (1, BAD)], width=6),
    stat("Release", "short", "Roles by release; more than one line means that releases are mixed.",
         'count by (release) (zagros_build_info{run="$run"})', width=6, legend="{{release}}"),
    stacked("Members", "short", "By role and state.",
            ('zagros_coordinator_members{run="$run"}', "{{member_role}} {{state}}"), width=12),
    lines("Heartbeats a second", "reqps", "Of all members.",
          (f'rate(zagros_coordinator_heartbeats_total{{run="$run"}}{RATE})', "heartbeats"), width=12),
    row("How far is it?"),
    lines("Epoch", "short", "Epoch, counted from 0.", ('zagros_coordinator_epoch{run="$run"}', "epoch"), width=6),
    lines("Splits", "short", "Complete ones and all of the epoch.",
          ('zagros_coordinator_splits_done{run="$run"}', "complete"), ('zagros_coordinator_splits{run="$run"}', "all"), width=6),
    lines("Generation of the placement", "short", "It counts up when buckets move; 0 before the first.",
          ('zagros_coordinator_generation{run="$run"}', "generation"), width=6),
    lines("Last evaluation", "short", "AUC, and logloss in nats, as the coordinator was told.",
          ('zagros_coordinator_auc{run="$run"}', "AUC"), ('zagros_coordinator_logloss{run="$run"}', "logloss"), width=6),
    *machine("coordinator", "coordinator"),
]


def variable(name, query, label):
    return {"name": name, "label": label, "type": "query", "datasource": SOURCE, "definition": query,
            "query": {"query": query, "refId": name}, "refresh": 2, "sort": 1}


def many(name, query, label):
    return variable(name, query, label) | {"multi": True, "includeAll": True, "allValue": ".*",
                                           "current": {"text": "All", "value": "$__all"}}


RUN = variable("run", 'label_values(up{job="zagros"}, run)', "Run") | {"sort": 2}
SERVERS = many("server", 'label_values(zagros_embedding_requests_total{run="$run"}, server)', "Server")
WORKERS = many("index", 'label_values(up{job="zagros", role="worker", run="$run"}, index)', "Worker")
DASHBOARDS = {
    "cluster": ("Zagros: cluster", CLUSTER, [RUN]),
    "embedding-server": ("Zagros: embedding servers", EMBEDDING, [RUN, SERVERS]),
    "dense-worker": ("Zagros: dense workers", WORKER, [RUN, WORKERS]),
    "coordinator": ("Zagros: coordinator", COORDINATOR, [RUN]),
}


def thresholds(steps):
    steps = steps or [(None, PLAIN)]
    return {"mode": "absolute", "steps": [{"value": value, "color": color} for value, color in steps]}


def look(spec):
    """The display options of a panel."""
    if spec["kind"] != "stat":
        return {"legend": {"displayMode": "list", "placement": "bottom"}, "tooltip": {"mode": "multi", "sort": "desc"}}
    named, graph = bool(spec["queries"][0][1]), spec["options"].get("graph", False)
    return {"graphMode": "area" if graph else "none", "textMode": "value_and_name" if named else "value",
            "colorMode": "background" if spec["steps"] else "value", "reduceOptions": {"calcs": ["lastNotNull"]}}


def rendered(spec, number, x, y, height):
    """A panel in Grafana's JSON."""
    stat_like = spec["kind"] == "stat"
    defaults = {"unit": spec["unit"], "thresholds": thresholds(spec["steps"]),
                "color": {"mode": "thresholds" if stat_like else "palette-classic"}}
    if not stat_like:
        defaults["min"] = 0
        stack = spec["options"].get("stack", False)
        defaults["custom"] = {"lineWidth": 1, "fillOpacity": 30 if stack else 5, "showPoints": "never",
                              "stacking": {"mode": "normal" if stack else "none"}}
    if spec["top"] is not None:
        defaults["max"] = spec["top"]
    targets = [{"refId": chr(ord("A") + place), "datasource": SOURCE, "expr": expr, "legendFormat": legend or "__auto"}
               for place, (expr, legend) in enumerate(spec["queries"])]
    return {"id": number, "type": spec["kind"], "title": spec["title"], "description": spec["description"],
            "datasource": SOURCE, "gridPos": {"x": x, "y": y, "w": spec["width"], "h": height},
            "fieldConfig": {"defaults": defaults, "overrides": []}, "options": look(spec), "targets": targets}


def laid_out(specs):
    """Places panels from left to right. A new line starts when one is full or a row begins."""
    panels, x, y, height = [], 0, 0, 0
    for number, spec in enumerate(specs, start=1):
        is_row = spec.get("type") == "row"
        if is_row or x + spec["width"] > 24:
            x, y, height = 0, y + height, 0
        if is_row:
            panels.append({"id": number, "type": "row", "title": spec["title"], "collapsed": False, "panels": [],
                           "gridPos": {"x": 0, "y": y, "w": 24, "h": 1}})
            y += 1
            continue
        tall = 4 if spec["kind"] == "stat" else 8
        panels.append(rendered(spec, number, x, y, tall))
        x, height = x + spec["width"], max(height, tall)
    return panels


def dashboard(uid, title, specs, variables):
    source = {"name": "datasource", "label": "Prometheus", "type": "datasource", "query": "prometheus"}
    return {
        "uid": f"zagros-{uid}", "title": title, "tags": ["zagros"], "schemaVersion": 39, "version": 1, "editable": False,
        "refresh": "10s", "time": {"from": "now-30m", "to": "now"}, "timezone": "browser", "graphTooltip": 1,
        "links": [{"type": "dashboards", "tags": ["zagros"], "title": "Zagros", "includeVars": True, "keepTime": True}],
        "templating": {"list": [source, *variables]},
        "panels": laid_out(specs),
    }


def main():
    check = sys.argv[1:] == ["--check"]
    differ = []
    for uid, (title, specs, variables) in DASHBOARDS.items():
        path = FOLDER / f"{uid}.json"
        text = json.dumps(dashboard(uid, title, specs, variables), indent=1) + "\n"
        if check and (not path.exists() or path.read_text() != text):
            differ.append(path.name)
        elif not check:
            path.write_text(text)
    if differ:
        sys.exit(f"error: {', '.join(differ)} differ from scripts/dashboards.py; next: python3 scripts/dashboards.py")


if __name__ == "__main__":
    main()
