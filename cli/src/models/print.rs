//! The table of networks and sizes, for a terminal.

use std::fmt::Write;

use indicatif::HumanBytes;
use owo_colors::OwoColorize;

use super::{ModelTable, NetworkRows, SizeRow};

pub(crate) fn text(table: &ModelTable) -> String {
    let mut page = format!("input: {}\n", table.input);
    for network in &table.networks {
        write_network(&mut page, network);
    }
    let memory = table
        .memory_bytes
        .map_or_else(|| "memory is unknown here".to_owned(), |bytes| format!("this machine has {}", HumanBytes(bytes)));
    let speed = table.flop_per_second.map_or_else(
        || "with all stages, as `zagros calibrate` measured them here".to_owned(),
        |flops| format!("the dense network alone, {} a second; `zagros calibrate` adds the rest", flop(flops)),
    );
    // Writing to a String cannot fail.
    let _ = write!(
        page,
        "\nresident   peak memory of `zagros train` without embedding rows, batch {};\n           {memory}, * is beyond it\n\
         streamed   peak memory of a worker with two layers at a time, and the store of all weights\n\
         samples/s  {}\n\
         set        [model] size = \"13m\", or --size 13m (docs/how-to/size.md)\n",
        table.batch_size, speed
    );
    page
}

fn write_network(page: &mut String, network: &NetworkRows) {
    let _ = writeln!(page, "\n{}  {}", network.kind.bold(), network.about.dimmed());
    let names = ["size", "weights", "width", "resident", "streamed", "store", "FLOP/sample", "samples/s"];
    let [size, weights, width, resident, streamed, store, work, rate] = names;
    let heading =
        format!("{size:>6} {weights:>8} {width:>7} {resident:>11}  {streamed:>10} {store:>10} {work:>12} {rate:>10}");
    let _ = writeln!(page, "{}", heading.dimmed());
    for row in &network.sizes {
        let _ = writeln!(page, "{}", line(row));
    }
    if let Some(why) = &network.refused {
        let _ = writeln!(page, "  {} {why}", "not here:".dimmed());
    }
}

/// Nothing where the job's weights cannot be streamed.
fn streamed(bytes: Option<u64>) -> String {
    bytes.map_or_else(|| "-".to_owned(), |bytes| HumanBytes(bytes).to_string())
}

fn line(row: &SizeRow) -> String {
    let mark = if row.fits { " " } else { "*" };
    let weights = zagros_job::ModelSize(row.weights).to_string();
    format!(
        "{:>6} {weights:>8} {:>7} {:>11}{mark} {:>10} {:>10} {:>12} {:>10}",
        row.size,
        row.width,
        HumanBytes(row.resident_bytes).to_string(),
        streamed(row.streamed_worker_bytes),
        streamed(row.streamed_store_bytes),
        flop(row.flop_per_sample as f64),
        rate(row.samples_per_second),
    )
}

/// `1.2 GFLOP`.
fn flop(count: f64) -> String {
    let units = [(1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")];
    let (factor, unit) = units.into_iter().find(|(factor, _)| count >= *factor).unwrap_or((1.0, ""));
    format!("{} {unit}FLOP", digits(count / factor))
}

fn rate(samples: f64) -> String {
    let units = [(1e6, "m"), (1e3, "k")];
    let (factor, unit) = units.into_iter().find(|(factor, _)| samples >= *factor).unwrap_or((1.0, ""));
    format!("{}{unit}", digits(samples / factor))
}

/// About three digits.
fn digits(number: f64) -> String {
    match number {
        number if number < 0.1 => format!("{number:.3}"),
        number if number < 10.0 => format!("{number:.2}"),
        number if number < 100.0 => format!("{number:.1}"),
        number => format!("{number:.0}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_short() {
        assert_eq!([665_000.0, 1.234e9, 12.0].map(flop), ["665 kFLOP", "1.23 GFLOP", "12.0 FLOP"]);
        assert_eq!([150_000.0, 9.5, 0.013, 2.5e6].map(rate), ["150k", "9.50", "0.013", "2.50m"]);
    }
}
