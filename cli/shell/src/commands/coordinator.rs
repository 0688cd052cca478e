//! `coordinator`: the control path of a job, in this process.

use std::sync::Arc;

use zagros_coordinator::{CoordinatorConfig, CoordinatorEnd, JournalRuns, JournalUse, RunOutcome};

use crate::args::{CoordinatorArgs, OnStop};
use crate::exit::{Exit, Failure, OrFailure};
use crate::port::RolePort;
use crate::role::Role;

/// Serves the control path until the run ends.
pub(super) async fn run(args: CoordinatorArgs) -> Result<Exit, Failure> {
    let journal = journal(&args)?;
    let role = Role::start(&args.config, "coordinator".to_owned())?;
    let grpc = role.bind(RolePort::Coordinator, &role.job.cluster.coordinator).await?;
    let http = role.bind(RolePort::Admin, &role.job.cluster.admin).await?;
    role.announce_addresses(&args.config, Some(&grpc), &http)?;
    let config = CoordinatorConfig {
        state_file: args.state_file,
        end_report: args.end_report,
        job: Arc::clone(&role.job),
        grpc_listener: grpc,
        admin_listener: Some(http),
        credentials: role.credentials.clone(),
        journal,
        on_stop: args.on_stop.into(),
        registry: role.registry.clone(),
    };
    let ended = zagros_coordinator::run(config, role.shutdown.clone()).await;
    match ended.or_exit(Exit::Cluster)? {
        CoordinatorEnd::Over(RunOutcome::Failed(reason)) => Err(Failure::with_help(
            Exit::Cluster,
            format!("the run failed: {reason}"),
            "the worker's log has the cause",
        )),
        CoordinatorEnd::Over(RunOutcome::Finished | RunOutcome::Interrupted(_)) | CoordinatorEnd::Restarts => {
            Ok(role.exit_status())
        }
    }
}

fn journal(args: &CoordinatorArgs) -> Result<Option<JournalUse>, Failure> {
    if args.on_stop == OnStop::Restart && args.journal.is_none() {
        let what = "--on-stop restart: without a journal the next coordinator cannot go on with the run";
        return Err(Failure::usage(what, "give its folder: --journal FOLDER"));
    }
    let runs = if args.one_run { JournalRuns::One } else { JournalRuns::Many };
    Ok(args.journal.clone().map(|folder| JournalUse { folder, runs }))
}
