//! `health`: asks a role over HTTP whether it lives. A process that hangs still accepts connections.

use std::time::Duration;

use zagros_plumbing::ask::ask_path;

use crate::args::HealthArgs;
use crate::exit::{Exit, Failure};
use crate::out;

/// Success is an answer of 200.
pub(super) async fn run(args: HealthArgs) -> Result<Exit, Failure> {
    let path = if args.ready { "/readyz" } else { "/healthz" };
    let help = "the role's log has the cause; its HTTP address is the key cluster.admin";
    let answer = ask_path(&args.admin, path, Duration::from_secs(args.timeout)).await;
    let (status, body) = answer.map_err(|error| Failure::with_help(Exit::Cluster, error, help))?;
    let said = String::from_utf8_lossy(&body).trim().to_owned();
    if !status.is_success() {
        return Err(Failure::with_help(Exit::Cluster, format!("{} says {said}", args.admin), help));
    }
    out!("{said}");
    Ok(Exit::Success)
}
