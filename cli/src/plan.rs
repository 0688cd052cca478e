//! `--dry-run`: the plan of a run, the memory and the disk that it needs. Reads only the first rows of each file.

use indicatif::{HumanBytes, HumanCount};
use owo_colors::OwoColorize;
use zagros_ingest::{DataPart, FileInfo, IngestError, check_first_rows, find_files};
use zagros_job::threads::Machine;
use zagros_job::{
    DenseFootprint, HeldOutRows, Job, Mode, Model, NewestRows, StreamedFootprint, Table, TimeBound, WeightStore,
};
use zagros_plumbing::memory::MemoryLimit;
use zagros_plumbing::metrics::DiskSpace;
use zagros_shell::launch::LogDisk;
use zagros_shell::{Exit, Failure, OrFailure, describe_threads, out};

use crate::memory::{self, MemoryNeed};
use crate::planning;
use crate::steps::EpochPlan;

/// Prints the plan of the processes on `machine`. An error at the start of the run is an error here too.
pub(crate) fn print(job: &Job, machine: &Machine) -> Result<(), Failure> {
    let files = look_at_files(job).or_exit(Exit::Data)?;
    let bytes = files.iter().map(|file| file.bytes).sum();
    out!("{}  plan; nothing was run\n", job.name.bold());
    row("training data", format!("{} file(s), {}", files.len(), HumanBytes(bytes)));
    let epoch = EpochPlan::new(job, &files);
    if let Some(epoch) = &epoch {
        row("rows, steps", epoch.in_words());
    }
    row("held out", held_out(&job.data.test));
    row("validation", validation(job));
    row("features", format!("{} numeric, {} categorical", job.features.numeric.len(), job.features.categorical.len()));
    row("model", model(job));
    row("training", training(job));
    row("processes", format!("{} embedding server(s), {} dense worker(s)", job.cluster.servers, job.cluster.workers));
    row("threads", describe_threads(job, machine));
    if let Some(warning) = epoch.and_then(|epoch| epoch.warning()) {
        tracing::warn!("{warning}");
    }
    print_forecast(job, machine);
    print_memory(job, machine)
}

/// The forecast in short; nothing where nothing is known of the network.
fn print_forecast(job: &Job, machine: &Machine) {
    let Ok(calibration) = planning::calibration(None) else { return };
    let (data, machines) = (planning::measure_shape(job, None), planning::this_machine(job, machine));
    let Ok(forecast) = planning::forecast(job, &data, &calibration, &machines) else { return };
    let bottleneck = forecast.limits.bottleneck().map(zagros_planner::RateLimit::name).unwrap_or_default();
    let (rate, cpu) = (HumanCount(forecast.samples_per_second() as u64), forecast.cpu_per_sample() * 1e6);
    row(
        "forecast",
        format!("{rate} samples/s, {cpu:.1} µs of CPU a sample; bottleneck: {bottleneck} (`zagros plan` says more)"),
    );
    row("", format!("speed of a core: {}", calibration.source));
}

fn print_memory(job: &Job, machine: &Machine) -> Result<(), Failure> {
    let (need, limit) = (MemoryNeed::new(job, machine), MemoryLimit::of_this_process());
    out!("\n{}", "memory".bold());
    match &job.model {
        Model::TorchScript { .. } => row("dense network", "as the module has it"),
        _ => row("dense network", dense_network(job, &need)),
    }
    row("batches", format!("{} for {} in flight", HumanBytes(need.batches), job.train.staleness + 1));
    for (shape, tables) in shapes(&job.tables) {
        let million = HumanBytes(shape.row_bytes() as u64 * 1_000_000);
        row("embeddings", format!("{tables} table(s) of dim {}: {million} per million rows", shape.dim));
    }
    if let Some(room) = need.room_text(limit) {
        row("room for rows", room);
    }
    row("during a save", copies(job));
    row("peak", format!("about {} and the rows", HumanBytes(need.usual_peak())));
    memory::check(job, machine)
}

/// Bytes of the dense networks of all workers, by what they are for.
fn dense_network(job: &Job, need: &MemoryNeed) -> String {
    if job.train.weights == WeightStore::Streamed {
        return streamed_network(job, need);
    }
    let footprint = job.dense_footprint().unwrap_or_default();
    let DenseFootprint { weights, gradients, optimizer, activations, .. } = footprint;
    let [weights, gradients, optimizer, activations] = [weights, gradients, optimizer, activations].map(HumanBytes);
    format!(
        "{}: weights {weights}, gradients {gradients}, optimiser {optimizer}, activations {activations}; {} more while it is saved",
        HumanBytes(need.dense),
        HumanBytes(need.saving)
    )
}

/// The same with streamed weights.
fn streamed_network(job: &Job, need: &MemoryNeed) -> String {
    let StreamedFootprint { layers, activations, messages, store, .. } = job.streamed_footprint().unwrap_or_default();
    let [layers, activations, messages, store] = [layers, activations, messages, store].map(HumanBytes);
    format!(
        "streamed, {} in the worker(s): two layers and their gradients {layers}, activations {activations}, messages {messages}; weights \
         and optimiser {store} at the servers",
        HumanBytes(need.dense)
    )
}

/// The most memory of a server for copies of rows that change while a save has not read them.
fn copies(job: &Job) -> String {
    let bytes = |bytes: usize| HumanBytes(bytes as u64);
    match job.cluster.memory {
        Some(memory) => {
            let most = zagros_table::copies_within(usize::try_from(memory).unwrap_or(usize::MAX));
            format!("copies of changed rows, at most {} of cluster.memory in each server", bytes(most))
        }
        None => {
            let least = bytes(zagros_table::copies_beside(0));
            format!("copies of changed rows, at most an eighth of the rows of a server or {least}, whichever is more")
        }
    }
}

pub(crate) fn print_log_disk(job: &Job) {
    let Some(disk) = LogDisk::from_job(job) else { return };
    let folder = job.cluster.log_folder.as_ref().unwrap_or(&job.output.folder);
    let space = DiskSpace::measure(folder).ok();
    out!("\n{}", "disk".bold());
    row("logs", disk.describe(folder, space));
    if let Some(warning) = disk.warning(space) {
        tracing::warn!("{warning}");
    }
}

/// The training files. Those of the test part are checked in the same way.
fn look_at_files(job: &Job) -> Result<Vec<FileInfo>, IngestError> {
    for part in [&job.data.test, &job.data.validation] {
        if let HeldOutRows::Files(files) = part {
            check_first_rows(job, &find_files(job, files)?, DataPart::All)?;
        }
    }
    let train = find_files(job, &job.data.train)?;
    check_first_rows(job, &train, DataPart::Train)?;
    Ok(train)
}

fn row(name: &str, text: impl std::fmt::Display) {
    out!("  {:<15}{text}", name.dimmed());
}

fn held_out(rows: &HeldOutRows) -> String {
    match rows {
        HeldOutRows::Files(files) => format!("{} file(s)", files.len()),
        HeldOutRows::Share(share) => format!("{:.1} % of the rows, chosen by a hash of the line", share * 100.0),
        HeldOutRows::Newest(NewestRows { column, from }) => match from {
            TimeBound::Number(from) => format!("rows whose {column} is {from} or later"),
            TimeBound::Text(from) => format!("rows whose {column} is {from} or later"),
        },
        HeldOutRows::None => "nothing".to_owned(),
    }
}

fn validation(job: &Job) -> String {
    if job.data.validation == HeldOutRows::None {
        return held_out(&HeldOutRows::None);
    }
    let stop = job.train.early_stop.map(|stop| format!(", at most {} evaluations without a better one", stop.patience));
    held_out(&job.data.validation) + &stop.unwrap_or_default()
}

fn model(job: &Job) -> String {
    let network = job.model.describe();
    // A module is not loaded, because a plan must not run its code.
    let weights = job.dense_parameters();
    weights.map_or_else(|| network.clone(), |weights| format!("{network}, {} dense weights", HumanCount(weights)))
}

fn training(job: &Job) -> String {
    let train = &job.train;
    let mode = match train.mode {
        Mode::Hybrid => format!("hybrid, staleness {}", job.train.staleness),
        Mode::Sync => "sync".to_owned(),
        Mode::Async => format!("async, staleness {}", job.train.staleness),
    };
    let weights = if train.weights == WeightStore::Streamed { ", weights streamed from the servers" } else { "" };
    let steps = train.max_steps.map_or_else(String::new, |steps| format!(", at most {} steps", HumanCount(steps)));
    format!("{} epoch(s), batch {}, {mode}{weights}{steps}, seed {}", train.epochs, train.batch_size, train.seed)
}

/// Tables with the same cost per row, counted.
fn shapes(tables: &[Table]) -> Vec<(&Table, usize)> {
    let mut shapes: Vec<(&Table, usize)> = Vec::new();
    for table in tables {
        match shapes.iter_mut().find(|(shape, _)| shape.row_bytes() == table.row_bytes() && shape.dim == table.dim) {
            Some((_, count)) => *count += 1,
            None => shapes.push((table, 1)),
        }
    }
    shapes
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use zagros_job::Overrides;
    use zagros_model::DenseModel;

    use super::*;

    #[test]
    fn every_network_has_as_many_weights_as_are_counted() {
        let sequence = |column: &str, table: &str| {
            format!("{{ column = '{column}', table = '{table}', separator = '|', sequence = {{ length = 3 }} }}")
        };
        let sequences =
            format!("[features]\ncategorical = ['C1', 'C2', {}, {}]", sequence("C3", "C2"), sequence("C4", "C1"));
        let networks = [
            "kind = 'dlrm'\nbottom = [8]\ntop = [6]",
            "kind = 'ffnn'\nhidden = [8, 6]",
            "kind = 'dcnv2'\nhidden = [8, 6]",
            "kind = 'dcnv2'\nhidden = [8, 6]\nstructure = 'parallel'\nrank = 5",
            "kind = 'dcnv2'\nhidden = []\nstructure = 'parallel'",
            "kind = 'deepfm'\nhidden = [8, 6]",
            "kind = 'wide_deep'\nhidden = [8, 6]",
            "kind = 'wukong'\nlayers = 3\nfmb = 3\nlcb = 2\nrank = 4\nfmb_hidden = [7]\nbottom = [8]\ntop = [6]",
            // Each layer gives as many vectors as it takes: 27.
            "kind = 'wukong'\nlayers = 1\nfmb = 20\nlcb = 7\nfmb_hidden = []\nbottom = []\ntop = []",
            "kind = 'finalmlp'\nfirst = [8, 6]\nsecond = [9]\nheads = 3",
            "kind = 'finalmlp'\nfirst = [8]\nsecond = [4]\ngate = { hidden = [5], first = ['C1', 'I2'] }",
            &format!("kind = 'din'\nattention_hidden = [7, 3]\nhidden = [6]\n{sequences}"),
            &format!("kind = 'bst'\nlayers = 2\nheads = 2\nffn = 5\nhidden = [6]\n{sequences}"),
            &format!("kind = 'din'\nattention_hidden = []\nactivation = 'sigmoid'\nhidden = []\n{sequences}"),
        ];
        let several = [
            "kind = 'ffnn'\nhidden = [8, 6]",
            "kind = 'dlrm'\nbottom = [8]\ntop = [6]",
            "kind = 'finalmlp'\nfirst = [8]\nsecond = [4]\nheads = 2",
            "kind = 'shared_bottom'\nbottom = [8, 6]\ntower = [5]",
            "kind = 'shared_bottom'\nbottom = []\ntower = []",
            "kind = 'mmoe'\nexperts = 3\nhidden = [8, 6]\ntower = [5]",
            "kind = 'ple'\nlevels = 3\nshared_experts = 1\ntask_experts = 2\nhidden = [8, 6]\ntower = [5]",
        ];
        let labels = "[features]\nlabel = ['label', { column = 'label', name = 'level', kind = 'classes', classes = ['0', '1'] }]\n";
        let of_sequences =
            ["kind = 'din'\nactivation = 'dice'\nhidden = [6]", "kind = 'bst'\ncausal = true\nhidden = [6]"];
        let labels_and_sequences = format!("{labels}{}\n", sequences.trim_start_matches("[features]\n"));
        let networks = networks.map(|network| (network, "")).into_iter();
        let networks = networks.chain(several.map(|network| (network, labels)));
        let networks = networks.chain(of_sequences.map(|network| (network, &labels_and_sequences[..])));
        for (network, labels) in networks {
            let text = format!(
                "[data]\nformat = 'criteo'\ntrain = 'a'\n[embedding]\ndim = 4\n[train]\nthreads = 1\n{labels}[model]\n{network}\n"
            );
            let job = Job::parse(&text, Path::new("job.toml"), &Overrides::none()).unwrap();
            let saved = DenseModel::new(&job, crate::backend::backend()).unwrap().to_safetensors().unwrap();
            // Eight bytes with the length of the header, the header, the weights in f32.
            let header = u64::from_le_bytes(saved[..8].try_into().unwrap());
            // Dice keeps two running averages of each unit.
            let averages = if network.contains("dice") { 2 * 2 * (80 + 40) } else { 0 };
            let weights = (saved.len() as u64 - 8 - header) / 4 - averages;
            assert_eq!(job.dense_parameters(), Some(weights), "{}", model(&job));
        }
    }
}
