//! Micro-benchmarks of this machine: [`measure_machine`] runs them all and gives the cost model's [`Calibration`].
//!
//! Times are CPU time wherever a stage is one thread's work, so that other programs on the machine disturb them little. Where the
//! wall clock is meant (threads, memory, disk, round trips), the best of several tries counts.

mod dense;
mod disk;
mod parse;
mod rows;
mod training;

use std::path::Path;

use zagros_model::Backend;
use zagros_planner::Calibration;
use zagros_plumbing::process::MachineInfo;
use zagros_shell::{Failure, OrFailure, note};

use self::rows::RowMeasurement;

const DIMS: [usize; 2] = [16, 64];

/// Measures this machine, in a minute or less. `program` is this program, which is started as embedding servers. `stamp` says when,
/// as the source of the figures, and `backend` computes networks.
pub async fn measure_machine(program: &Path, backend: Backend, stamp: &str) -> Result<Calibration, Failure> {
    let here = MachineInfo::of_this_machine();
    let (cores, processor) = (here.cores, here.processor.unwrap_or_else(|| "unknown processor".to_owned()));
    note!("1 of 5: the dense network");
    let mut dense = tokio::task::spawn_blocking(move || dense::rates(backend, cores)).await.or_internal()??;
    note!("2 of 5: rows of embeddings, in this process and over loopback");
    let mut measured = Vec::new();
    for dim in DIMS {
        measured.push(rows::measure(program, dim).await?);
    }
    note!("3 of 5: whole training steps");
    let training::TrainingCosts { ids, step, in_training } = training::costs(backend, &dense, &measured).await?;
    dense.in_training = in_training;
    note!("4 of 5: parsers");
    let parse = tokio::task::spawn_blocking(parse::rates).await.or_internal()??;
    note!("5 of 5: memory, disk, and rows on disk");
    let (memory, disk) =
        tokio::task::spawn_blocking(move || (disk::copy_rate(cores), disk::disk_rates())).await.or_internal()?;
    let cold = tokio::task::spawn_blocking(disk::cold_rates).await.or_internal()??;
    Ok(Calibration {
        source: format!("measured by `zagros calibrate`, {stamp}, {cores} core(s) of {processor}"),
        processor,
        cores: u32::try_from(cores).unwrap_or(u32::MAX),
        memory_bytes_per_second: memory,
        dense,
        rows: measured.iter().map(|row| row.cost).collect(),
        ids,
        step,
        wire: RowMeasurement::wire(&measured),
        parse,
        disk: disk?,
        cold,
    })
}
