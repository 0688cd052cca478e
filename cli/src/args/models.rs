//! The arguments of `zagros models`.

use std::path::PathBuf;

use clap::Args;

/// Networks and sizes.
#[derive(Debug, Args)]
pub(crate) struct ModelsArgs {
    /// The job over whose features the networks read. Without it: Criteo's 13 numbers and 26 categories, each of dim 16.
    #[arg(value_name = "JOB")]
    pub(crate) job: Option<PathBuf>,
    /// Change a key of the job: `--set train.batch_size=1024` (again for more).
    #[arg(long = "set", value_name = "KEY=VALUE")]
    pub(crate) sets: Vec<String>,
    /// Only this network: `dlrm` (again for more).
    #[arg(long = "kind", value_name = "KIND")]
    pub(crate) kinds: Vec<String>,
    /// Floating-point operations that this machine makes in a second: `80G`. Without it, the figures of `zagros calibrate`
    /// count, or a second of training steps is measured.
    #[arg(long, value_name = "RATE", value_parser = parse_rate)]
    pub(crate) flops: Option<f64>,
    /// Print one JSON object.
    #[arg(long)]
    pub(crate) json: bool,
}

/// `80G`, `1.5T` or a plain number.
fn parse_rate(text: &str) -> Result<f64, String> {
    let units = [('M', 1e6), ('G', 1e9), ('T', 1e12), ('P', 1e15)];
    let unit = units.into_iter().find(|(unit, _)| text.ends_with(*unit));
    let (digits, factor) = unit.map_or((text, 1.0), |(unit, factor)| (text.trim_end_matches(unit), factor));
    let rate = digits.parse::<f64>().ok().map(|number| number * factor);
    rate.filter(|rate| rate.is_finite() && *rate >= 1.0).ok_or_else(|| "write a number such as 80G or 1.5T".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_is_a_number_with_a_unit() {
        assert_eq!(["80G", "1.5T", "2000"].map(parse_rate), [Ok(80e9), Ok(1.5e12), Ok(2000.0)]);
        for wrong in ["", "G", "80g", "-1G", "inf", "nan", "0"] {
            assert!(parse_rate(wrong).is_err(), "{wrong}");
        }
    }
}
