//! `zagros inspect`: the content of a saved model's tables; one row; checksums; export.

mod draw;
mod export;
mod log;
mod model;
mod row;
mod tables;
mod verify;

use std::path::Path;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};

use crate::args::InspectModelArgs;
use model::InspectedModel;
use zagros_shell::{Exit, Failure};

pub(crate) fn run(args: &InspectModelArgs) -> Result<Exit, Failure> {
    if args.log {
        return log::show(&args.model, args.json);
    }
    let model = InspectedModel::open(&args.model, Duration::from_secs(args.timeout))?;
    if args.verify {
        return verify::verify(&model, args.json);
    }
    if !args.unchecked {
        model.check()?;
    }
    if let Some(to) = &args.export {
        return export::export(&model, args, to);
    }
    match (&args.table, args.wanted_id()) {
        (Some(table), Some(id)) => row::show(&model, table, id, args.json),
        _ => tables::show(&model, args.table.as_deref(), args.json),
    }
}

/// A bar for reading the files. Drawn on a terminal only.
fn progress(model: &InspectedModel) -> ProgressBar {
    let bar = ProgressBar::new(model.total_bytes());
    let style = ProgressStyle::with_template("{wide_bar:.cyan/dim} {bytes} of {total_bytes}");
    bar.with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()).progress_chars("━╸─"))
}

fn file_name(path: &Path) -> String {
    path.file_name().unwrap_or(path.as_os_str()).to_string_lossy().into_owned()
}
