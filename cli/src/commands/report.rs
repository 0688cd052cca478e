//! `zagros report`: writes a run's page again, from its folder.

use zagros_dense_worker::RunFolder;
use zagros_shell::{Exit, Failure, print_answer};

use crate::args::ReportArgs;
use crate::page;

pub(crate) fn run(args: &ReportArgs) -> Result<Exit, Failure> {
    let folder = RunFolder::open(&args.run).map_err(|error| Failure::from_error(Exit::Data, error))?;
    print_answer(&page::write(&folder)?.display().to_string())?;
    Ok(Exit::Success)
}
