//! The arguments of `zagros quantize`.

use std::path::PathBuf;

use clap::Args;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use zagros_table::WeightType;

const EXAMPLES: &str = "\
Examples:
  zagros quantize runs/ads-… -o served --element int8                       a byte a weight in every table
  zagros quantize runs/ads-… -o served --element int8 --without-state       and no optimiser state: only to serve
  zagros quantize runs/ads-… -o half --element f16 --table user --table ad  two tables only";

#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct QuantizeArgs {
    /// Run folder, or the folder of a model or checkpoint, also s3://bucket/…. It stays as it is.
    #[arg(value_name = "MODEL")]
    pub(crate) model: PathBuf,
    /// Write the model to this folder, which must not exist, also s3://bucket/….
    #[arg(short, long, value_name = "FOLDER")]
    pub(crate) output: PathBuf,
    /// The number format of a weight (embedding.element). Each weight is rounded to the nearest number.
    #[arg(long, value_parser = elements())]
    pub(crate) element: WeightType,
    /// Convert this table only (again for more). Without this, every table of features is converted.
    #[arg(long, value_name = "NAME")]
    pub(crate) table: Vec<String>,
    /// Leave the state of the optimisers out. The model scores as with it; no run of the same job starts from it.
    #[arg(long)]
    pub(crate) without_state: bool,
    /// Print one JSON object.
    #[arg(long)]
    pub(crate) json: bool,
    /// How long to wait for an object store that a model is in.
    #[arg(long, default_value_t = 30, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..=86_400))]
    pub(crate) timeout: u64,
}

fn elements() -> impl TypedValueParser<Value = WeightType> {
    let of_name = |name: String| WeightType::ALL.into_iter().find(|element| element.name() == name).ok_or("unknown");
    PossibleValuesParser::new(WeightType::ALL.map(WeightType::name)).try_map(of_name)
}
