//! `coordinator`: the control path of a job, in this process.

use std::sync::Arc;

use zagros_coordinator::{CoordinatorConfig, RunOutcome};

use crate::args::CoordinatorArgs;
use crate::exit::{Exit, Failure};
use crate::page_token;
use crate::port::Port;
use crate::role::Role;

/// Serves the control path until the run ends.
pub(super) async fn run(args: CoordinatorArgs) -> Result<Exit, Failure> {
    let role = Role::start(&args.config, "coordinator".to_owned())?;
    let page_token = page_token::from_environment()?;
    let grpc = role.bind(Port::Coordinator, &role.job.cluster.coordinator).await?;
    let http = role.bind(Port::Admin, &role.job.cluster.admin).await?;
    role.announce(&args.config, Some(&grpc), &http)?;
    let config = CoordinatorConfig {
        job: Arc::clone(&role.job),
        grpc_listener: grpc,
        admin_listener: Some(http),
        page_token,
        journal: args.journal,
        registry: role.registry.clone(),
    };
    let outcome = zagros_coordinator::run(config, role.shutdown.clone()).await;
    match outcome.map_err(|error| Failure::from_error(Exit::Cluster, error))? {
        RunOutcome::Failed(reason) => Err(Failure::with_help(
            Exit::Cluster,
            format!("the run failed: {reason}"),
            "the worker's log has the cause",
        )),
        RunOutcome::Finished | RunOutcome::Interrupted(_) => Ok(role.exit()),
    }
}
