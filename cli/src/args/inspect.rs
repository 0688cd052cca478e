//! The arguments of `zagros inspect`.

use std::path::PathBuf;

use clap::Args;

#[derive(Debug, Args)]
pub(crate) struct InspectModelArgs {
    /// Run folder, the folder of a model or checkpoint, or a .zrows file, also s3://bucket/….
    #[arg(value_name = "MODEL")]
    pub(crate) model: PathBuf,
    /// Look at this table only.
    #[arg(long, value_name = "NAME")]
    pub(crate) table: Option<String>,
    /// Show the row of this id, decimal or 0x….
    #[arg(long, value_name = "ID", requires = "table", conflicts_with = "value", value_parser = parse_id)]
    pub(crate) id: Option<u64>,
    /// Show the row of this value, written as in the data. The value's hash is its id.
    #[arg(long, value_name = "TEXT", requires = "table")]
    pub(crate) value: Option<String>,
    /// Check every checksum of every file.
    #[arg(long, conflicts_with_all = ["table", "export"])]
    pub(crate) verify: bool,
    /// Do not compare whole files with the hashes in the manifest first. Of a large model in a store, only the needed parts
    /// are then read. Damage elsewhere, and files of another save, go unnoticed.
    #[arg(long, conflicts_with = "verify")]
    pub(crate) unchecked: bool,
    /// Write the table for other programs: FILE.parquet or FILE.safetensors.
    #[arg(long, value_name = "FILE", requires = "table", conflicts_with_all = ["id", "value"])]
    pub(crate) export: Option<PathBuf>,
    /// Export optimiser state and access metadata too.
    #[arg(long, requires = "export")]
    pub(crate) state: bool,
    /// Replace the exported file if it exists.
    #[arg(long, requires = "export")]
    pub(crate) force: bool,
    /// MODEL is the folder of an embedding server's log: show what it holds, and check it.
    #[arg(long, conflicts_with_all = ["table", "verify", "unchecked", "export"])]
    pub(crate) log: bool,
    /// Print JSON.
    #[arg(long)]
    pub(crate) json: bool,
    /// How long to wait for an object store that the model is in.
    #[arg(long, default_value_t = 30, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..=86_400))]
    pub(crate) timeout: u64,
}

impl InspectModelArgs {
    pub(crate) fn wanted_id(&self) -> Option<u64> {
        self.id.or_else(|| self.value.as_deref().map(|text| zagros_ingest::hash_value(text.as_bytes())))
    }
}

/// Parses an id in the forms that other programs show: decimal, or hexadecimal after 0x.
pub(crate) fn parse_id(text: &str) -> Result<u64, String> {
    let parsed = match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16),
        None => text.parse(),
    };
    parsed.map_err(|error| {
        format!("{error}; an id is a number of 64 bits, decimal or 0x…; for a value of the data use --value")
    })
}
