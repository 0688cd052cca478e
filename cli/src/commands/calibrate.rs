//! `zagros calibrate`: measures this machine, and writes the figures where `zagros plan` finds them.

use zagros_plumbing::{disk, durable};
use zagros_shell::{Exit, Failure, OrInternal, out};

use crate::args::CalibrateArgs;
use crate::planning;

pub(crate) async fn run(args: CalibrateArgs) -> Result<Exit, Failure> {
    let file = match args.output {
        Some(file) => file,
        None => planning::calibration_file().ok_or_else(|| {
            let help =
                "say where to write: --output calibration.toml; and give that file to `zagros plan --calibration`";
            Failure::with_help(Exit::Usage, "neither HOME nor XDG_CACHE_HOME is set, so there is no cache folder", help)
        })?,
    };
    let unwritable = |error: std::io::Error| {
        let what = format!("cannot write {}: {error}", file.display());
        Failure::with_help(Exit::Storage, what, disk::next_step(&error))
    };
    // Before half a minute of measurements.
    file.parent().map_or(Ok(()), std::fs::create_dir_all).map_err(unwritable)?;
    let program = std::env::current_exe().or_internal()?;
    let today = jiff::Zoned::now().date();
    let calibration = zagros_calibrate::measure_machine(&program, &today.to_string()).await?;
    durable::write(&file, calibration.to_toml().as_bytes()).map_err(unwritable)?;
    planning::print_calibration(&calibration);
    out!("\nwritten to {}", file.display());
    Ok(Exit::Success)
}
