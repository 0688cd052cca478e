//! Children of tests: shells that run one command.

use std::path::PathBuf;

use crate::launch::child::{ChildEnvironment, ChildProcess, RoleName};
use crate::launch::prefix::ChildOutput;

/// A role that runs this command.
pub(crate) fn shell(role: RoleName, command: &str) -> ChildProcess {
    let arguments = ["-c".to_owned(), command.to_owned()];
    let (environment, output) = (ChildEnvironment::default(), ChildOutput::default());
    ChildProcess::start("sh".as_ref(), role, (&arguments, environment), PathBuf::new(), &output).unwrap()
}
