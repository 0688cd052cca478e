//! A forecast, for a person or as JSON.

use indicatif::{HumanBytes, HumanCount};
use serde_json::{Value, json};
use zagros_job::Table;
use zagros_planner::{Forecast, ForecastInputs, MachineGroup, PlanStage, RateLimit, RowsOnDisk, WorkerMemory};
use zagros_shell::{CommandReport, ReportTable};

use super::{short_number, streaming_in_words};

/// A forecast with what it was made of.
pub(crate) struct PlanReport<'a> {
    pub(crate) inputs: ForecastInputs<'a>,
    pub(crate) forecast: &'a Forecast,
}

/// Bytes of rows in each server.
#[derive(Clone, Copy)]
struct ServerRows {
    /// With the index of those on disk.
    in_memory: f64,
    on_disk: f64,
}

impl PlanReport<'_> {
    pub(crate) fn to_json(&self) -> Value {
        let ForecastInputs { data, calibration, machines, .. } = self.inputs;
        let Forecast { work, stages, limits, memory, scaling, epoch, .. } = self.forecast;
        let stage = |(stage, seconds): &(PlanStage, f64)| json!({"stage": stage.name(), "role": role(*stage), "cpu_us_per_sample": seconds * 1e6});
        let limit = |(limit, rate): &(RateLimit, f64)| json!({"limit": limit.name(), "samples_per_second": rate});
        json!({
            "calibration": calibration.source,
            "is_data_measured": data.is_measured,
            "workers": machines.worker_count(),
            "servers": machines.server_count(),
            "samples_per_second": self.forecast.samples_per_second(),
            "cpu_us_per_sample": self.forecast.cpu_per_sample() * 1e6,
            "worker_cpu_us_per_sample": stages.worker_cpu() * 1e6,
            "bottleneck": self.bottleneck(),
            "advice": self.advice(),
            "flop_per_sample": work.dense.flop,
            "dense_parameters": work.dense.parameters,
            "distinct_rows_per_sample": work.distinct_rows(),
            "network_bytes_per_sample": self.network_bytes(),
            "all_reduce_bytes_per_sample": work.reduce_bytes(machines.worker_count()),
            "stages": stages.cpu.iter().map(stage).collect::<Vec<_>>(),
            "limits": limits.rates.iter().map(limit).collect::<Vec<_>>(),
            "memory": self.memory_json(),
            // None if all rows are in memory, or their number is not known.
            "rows_on_disk": self.forecast.rows_on_disk.as_ref().map(|rows| self.disk_json(rows)),
            "workers_that_pay": scaling.workers,
            "samples_per_second_with_them": scaling.samples_per_second,
            "is_streamed": memory.is_streamed,
            "streaming": memory.is_streamed.then(|| streaming_in_words(self.forecast)),
            "too_little_memory": self.too_little(),
            "samples": epoch.map(|epoch| epoch.samples),
            "hours": epoch.map(|epoch| epoch.hours),
            "money": self.money(),
            "currency": machines.currency,
        })
    }

    /// Bytes. What is of streamed weights holds for a run with them, if this one has none.
    fn memory_json(&self) -> Value {
        let Forecast { memory, work, streaming_batch, .. } = self.forecast;
        let (worker, rows) = (memory.job_worker(), self.server_rows());
        json!({
            "worker": worker.all_bytes(),
            "worker_dense": worker.weights,
            "worker_optimizer": worker.optimizer,
            "worker_activations": worker.activations,
            "worker_batches": worker.batches,
            "server_dense": memory.server_bytes(),
            "resident_worker": memory.resident.all_bytes(),
            "streamed_worker": memory.streamed.all_bytes(),
            "streamed_server": memory.streamed_server,
            "streamed_bytes_per_step": work.traffic.step_bytes(),
            "streaming_batch": streaming_batch,
            "million_rows": self.mean_row() * 1e6,
            "server_rows": rows.map(|rows| rows.in_memory),
            "server_cold_rows": rows.map(|rows| rows.on_disk),
        })
    }

    fn bottleneck(&self) -> String {
        self.forecast.limits.bottleneck().map(RateLimit::name).unwrap_or_default()
    }

    fn advice(&self) -> &'static str {
        let advice = |limit: &RateLimit| limit.advice(&self.forecast.stages, self.inputs.machines);
        self.forecast.limits.bottleneck().map(advice).unwrap_or_default()
    }

    /// Of a sample, between a worker and the servers, both ways.
    fn network_bytes(&self) -> f64 {
        let work = &self.forecast.work;
        if self.inputs.machines.is_embedded() { 0.0 } else { work.bytes_up + work.bytes_down }
    }

    fn money(&self) -> Option<f64> {
        self.forecast.epoch.map(|epoch| epoch.money).filter(|money| *money > 0.0)
    }

    /// Bytes of a mean row of all tables.
    fn mean_row(&self) -> f64 {
        super::table_mean(self.inputs.job, Table::row_bytes)
    }

    /// `None` if the number of rows is not known.
    fn server_rows(&self) -> Option<ServerRows> {
        let servers = self.inputs.machines.server_count().max(1.0);
        let all = self.inputs.data.rows? as f64 * self.mean_row() / servers;
        let Some(rows) = &self.forecast.rows_on_disk else { return Some(ServerRows { in_memory: all, on_disk: 0.0 }) };
        let in_memory = (rows.memory_bytes() + rows.index_bytes()) / servers;
        Some(ServerRows { in_memory, on_disk: rows.disk_bytes() / servers })
    }

    /// The groups whose machines have less memory than their roles need, and by how much.
    fn too_little(&self) -> Vec<String> {
        let (memory, machines) = (&self.forecast.memory, self.inputs.machines);
        let rows = self.server_rows().map_or(0.0, |rows| rows.in_memory);
        let servers = |group: &MachineGroup| if machines.is_embedded() { group.workers } else { group.servers };
        let need = |group: &MachineGroup| {
            group.workers * memory.job_worker().all_bytes() + servers(group) * (rows + memory.server_bytes())
        };
        let small = machines.groups.iter().filter(|group| group.memory > 0.0 && need(group) > group.memory);
        let words = |group: &MachineGroup| {
            let short = bytes(need(group) - group.memory);
            let (has, need) = (bytes(group.memory), bytes(need(group)));
            format!(
                "each machine of `{}` has {has} of memory, and its roles need {need}: {short} too little",
                group.name
            )
        };
        small.map(words).collect()
    }

    pub(crate) fn report(&self) -> CommandReport {
        let ForecastInputs { job, data, calibration, machines } = self.inputs;
        let Forecast { work, stages, limits, scaling, epoch, .. } = self.forecast;
        let (workers, servers) = (machines.worker_count(), machines.server_count());
        let rate = count(self.forecast.samples_per_second());
        let mut facts = vec![
            ("speed", format!("{rate} samples/s with {workers} dense worker(s) and {}", servers_in_words(servers))),
            ("bottleneck", self.bottleneck()),
            ("next", self.advice().to_owned()),
        ];
        if servers > 0.0 {
            let (most, rate) = (scaling.workers, count(scaling.samples_per_second));
            let pay = "pay, each adds at least half of what the first one makes";
            facts.push(("workers", format!("up to {most} {pay}; {rate} samples/s with so many")));
        }
        if let Some(epoch) = epoch {
            let money = self.money().map_or_else(String::new, |money| format!(", {money:.2} {}", machines.currency));
            facts.push(("an epoch", format!("{} samples: {}{money}", count(epoch.samples), time(epoch.hours))));
        }
        let mut report = CommandReport::default();
        report.add_lead(&format!("{}  forecast; nothing was run\n", job.name)).add_facts(facts);
        let line = |role: &str, stage: &str, seconds: f64| {
            vec![role.to_owned(), stage.to_owned(), format!("{:.2}", seconds * 1e6)]
        };
        let lines = stages.cpu.iter().map(|(stage, seconds)| line(role(*stage), stage.name(), *seconds));
        let lines = lines.chain([line("all", "", self.forecast.cpu_per_sample())]).collect();
        report.add_title("a sample").add_table(ReportTable::new(&["role", "stage", "µs of CPU"], lines)).add_note(
            &format!(
                "  {} FLOP of {} dense weights; {:.1} distinct rows; {} on the network, {} for the all-reduce",
                short_number(work.dense.flop),
                short_number(work.dense.parameters),
                work.distinct_rows(),
                bytes(self.network_bytes()),
                bytes(work.reduce_bytes(workers))
            ),
        );
        let rates = limits.rates.iter().map(|(limit, rate)| vec![limit.name(), count(*rate)]).collect();
        report.add_title("limits").add_table(ReportTable::new(&["limit", "samples/s"], rates));
        self.too_little().iter().for_each(|group| tracing::warn!("{group}"));
        report.add_title("memory").add_facts(self.memory_facts());
        if let Some(rows) = &self.forecast.rows_on_disk {
            if rows.is_refused {
                tracing::warn!(
                    "the index of rows on disk leaves rows less than a quarter of cluster.memory, and the servers will refuse new rows: \
                     give them more memory, or add servers"
                );
            }
            report.add_title("rows on disk");
            self.disk_lines(rows).iter().for_each(|line| _ = report.add_note(&format!("  {line}")));
        }
        report.add_title("what it is made of").add_facts(vec![("speed of a core", calibration.source.clone())]);
        if !data.is_measured {
            report.add_note("  the data could not be looked at: ids a sample and distinct rows are assumed");
        }
        report
    }

    fn memory_facts(&self) -> Vec<(&'static str, String)> {
        let Forecast { memory, work, streaming_batch, .. } = self.forecast;
        let WorkerMemory { weights, optimizer, activations, batches } = *memory.job_worker();
        let [weights, optimizer, activations, batches] = [weights, optimizer, activations, batches].map(bytes);
        let what = if memory.is_streamed { "two layers and their gradients" } else { "weights and gradients" };
        let all = bytes(memory.job_worker().all_bytes());
        let parts = format!("{what} {weights}, optimiser {optimizer}, between layers {activations}, batches {batches}");
        let rows = match self.server_rows() {
            Some(ServerRows { in_memory, on_disk }) if on_disk > 0.0 => {
                format!("{} of rows and index in memory (cluster.memory), {} on disk", bytes(in_memory), bytes(on_disk))
            }
            Some(rows) => format!("{} of rows", bytes(rows.in_memory)),
            None => format!("{} for a million rows (--rows N says what all take)", bytes(self.mean_row() * 1e6)),
        };
        let mut facts = vec![("each dense worker", format!("{all}: {parts}")), ("each server", rows)];
        if memory.is_streamed {
            let (served, whole) = (bytes(memory.server_bytes()), bytes(memory.resident.all_bytes()));
            facts.extend([
                ("", format!("{served} of dense weights and their optimiser state")),
                ("streamed weights", streaming_in_words(self.forecast)),
                ("", format!("with its whole network a worker would need {whole}")),
            ]);
        } else {
            let [worker, server, step] =
                [memory.streamed.all_bytes(), memory.streamed_server, work.traffic.step_bytes()].map(bytes);
            let batch = count(streaming_batch.ceil());
            facts.push((
                "if streamed",
                format!(
                    "{worker} in a worker and {server} in each server, {step} a step, hidden from a batch of {batch} on"
                ),
            ));
        }
        facts
    }

    /// Rows beyond `cluster.memory`. Rows and bytes are those of all servers together.
    fn disk_json(&self, rows: &RowsOnDisk) -> Value {
        let stages = &self.forecast.stages;
        let cpu = stages.of_stage(PlanStage::ColdRows) + stages.of_stage(PlanStage::ServerColdRows);
        json!({
            "rows_in_memory": rows.in_memory,
            "rows_on_disk": rows.on_disk,
            "memory_bytes": rows.memory_bytes(),
            "index_bytes": rows.index_bytes(),
            // Up to twice as much until what is overwritten is removed.
            "disk_bytes": rows.disk_bytes(),
            "zipf_exponent": rows.exponent,
            "read_share": rows.share,
            "reads_per_sample": rows.reads,
            "written_bytes_per_sample": rows.written_bytes(),
            "cpu_us_per_sample": 1e6 * cpu,
            "samples_per_second": self.inputs.machines.disk_count() / stages.disk,
            "lookahead": self.inputs.job.lookahead_batches(),
            "is_refused": rows.is_refused,
        })
    }

    fn disk_lines(&self, rows: &RowsOnDisk) -> [String; 3] {
        let part = 100.0 * rows.in_memory / (rows.in_memory + rows.on_disk);
        let wait = format!(
            "hints read them {} batches before the lookup, which waits for none unless the disks are the bottleneck",
            self.inputs.job.lookahead_batches()
        );
        [
            format!(
                "{part:.1} % of the rows are in memory; their memory is {}, that of the index of the others {}; on disk {}, up to twice as \
                 much until what is overwritten is removed",
                bytes(rows.memory_bytes()),
                bytes(rows.index_bytes()),
                bytes(rows.disk_bytes())
            ),
            format!(
                "a batch reads {:.1} % of its distinct rows from disk, {:.2} rows a sample, and writes {} a sample; assumed: Zipf's law with \
                 exponent {:.2}, by the distinct rows of a batch, and memory for the rows that were used last",
                100.0 * rows.share,
                rows.reads,
                bytes(rows.written_bytes()),
                rows.exponent
            ),
            wait,
        ]
    }
}

fn role(stage: PlanStage) -> &'static str {
    if stage.is_of_servers() { "embedding server" } else { "dense worker" }
}

pub(crate) fn servers_in_words(servers: f64) -> String {
    if servers == 0.0 { "all roles in one process".to_owned() } else { format!("{servers} embedding server(s)") }
}

pub(crate) fn count(value: f64) -> String {
    HumanCount(value.max(0.0) as u64).to_string()
}

fn bytes(value: f64) -> String {
    HumanBytes(value.max(0.0) as u64).to_string()
}

fn time(hours: f64) -> String {
    match hours {
        hours if hours >= 1.0 => format!("{hours:.1} h"),
        hours if hours >= 1.0 / 60.0 => format!("{:.1} min", hours * 60.0),
        hours => format!("{:.1} s", hours * 3600.0),
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use zagros_job::{Job, Overrides};
    use zagros_planner::{Calibration, DataShape, Machines};

    use super::*;
    use crate::planning::forecast;

    #[test]
    fn figures_are_short() {
        assert_eq!([1.5e12, 2e6, 999.0].map(short_number), ["1.50 T", "2.00 M", "999 "]);
        assert_eq!([2.5, 0.5, 0.01].map(time), ["2.5 h", "30.0 min", "36.0 s"]);
    }

    const ONE: &str = "[[group]]\nname = 'here'\ncores = 2\nmemory = '8GiB'\nworkers = 1\n";

    /// The forecast as JSON, and its lines of rows on disk.
    fn figures(sets: &[&str], rows: Option<u64>) -> (Value, Option<[String; 3]>) {
        let text =
            "[data]\nformat = 'criteo'\ntrain = 'a'\n[embedding]\ndim = 16\n[model]\nkind = 'ffnn'\nhidden = [8]\n";
        let job = Job::parse(text, Path::new("job.toml"), &Overrides::sets(sets.iter().copied())).unwrap();
        let data = DataShape { rows, ..DataShape::from_job(&job) };
        let (calibration, machines) = (Calibration::default(), Machines::from_toml(ONE).unwrap());
        let inputs = ForecastInputs { job: &job, data: &data, calibration: &calibration, machines: &machines };
        let plan = forecast(&job, &data, &calibration, &machines).unwrap();
        let report = PlanReport { inputs, forecast: &plan };
        let lines = plan.rows_on_disk.as_ref().map(|rows| report.disk_lines(rows));
        (report.to_json(), lines)
    }

    #[test]
    fn a_forecast_has_figures_of_rows_on_disk_only_if_some_are_there() {
        let (json, lines) = figures(&["cluster.memory=1000MB"], Some(6_000_000));
        assert_eq!((lines, &json["rows_on_disk"]), (None, &Value::Null));
        assert_eq!(json["memory"]["server_rows"], 6e6 * 152.0);
        let (json, lines) = figures(&["cluster.memory=1000MB"], Some(20_000_000));
        let some = &json["rows_on_disk"];
        assert_eq!(some["rows_in_memory"], (1e9 - 12.0 * 2e7) / 140.0);
        assert_eq!(json["memory"]["server_cold_rows"], some["disk_bytes"]);
        let figure = |value: &Value| value.as_f64().unwrap();
        assert!((figure(&json["memory"]["server_rows"]) - 1e9).abs() < 1.0);
        assert!((figure(&some["cpu_us_per_sample"]) / figure(&some["reads_per_sample"]) - 3.3).abs() < 1e-9);
        let lines = lines.unwrap();
        assert!(lines[0].starts_with("27.1 % of the rows are in memory"), "{lines:?}");
        assert!(lines[2].starts_with("hints read them 2 batches before"), "{lines:?}");
    }
}
