//! `coordinator` and `embedding-server`: the control path of a job and one shard of its rows, each in a process of its own.

use std::sync::Arc;

use zagros_coordinator::{CoordinatorConfig, CoordinatorEnd, JournalRuns, JournalUse, RunOutcome};
use zagros_embedding_server::{ServerConfig, ServerEnd};
use zagros_job::Job;
use zagros_protocol::ServerIndex;

use crate::args::{CoordinatorArgs, OnStop, ServerArgs};
use crate::exit::{Exit, Failure, OrFailure};
use crate::port::RolePort;
use crate::role::Role;
use crate::start::{check_folders, load_job};

/// Serves the control path until the run ends.
pub(super) async fn run_coordinator(args: CoordinatorArgs) -> Result<Exit, Failure> {
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

/// Threads of an embedding server. The runtime needs their number before it starts.
pub(super) fn server_threads(args: &ServerArgs) -> Result<usize, Failure> {
    Ok(load_job(args.config.job_file(), &args.config.sets)?.cluster.server_threads)
}

pub(super) async fn run_server(args: ServerArgs) -> Result<Exit, Failure> {
    let role = Role::start(&args.config, format!("embedding server {}", args.index))?;
    check_log(&role.job, args.on_stop)?;
    // Each server writes its own rows, so a fault of its environment is reported now.
    check_folders(&role.job)?;
    let address = address(&role.job, args.index)?;
    let grpc = role.bind(RolePort::EmbeddingServer, address).await?;
    let http = role.bind(RolePort::Admin, &role.job.cluster.admin).await?;
    role.announce_addresses(&args.config, Some(&grpc), &http)?;
    let config = ServerConfig {
        job: Arc::clone(&role.job),
        index: ServerIndex(args.index),
        control: role.control_client()?,
        advertised: role.advertised_address(args.advertise, &grpc)?,
        data_listener: grpc,
        credentials: role.credentials.clone(),
        page: role.page_access(&http)?,
        admin_listener: Some(http),
        storage_folders: args.storage_folders,
        on_stop: args.on_stop.into(),
        registry: role.registry.clone(),
    };
    let ended = zagros_embedding_server::run(config, role.shutdown.clone()).await.or_exit(Exit::Cluster)?;
    Ok(match ended {
        // Also if a signal asked for it: the run goes on, and no supervisor is to start this server again.
        ServerEnd::Released => Exit::Success,
        ServerEnd::Stopped => role.exit_status(),
    })
}

/// Checks that a server that ends alone leaves its rows to the next one.
fn check_log(job: &Job, on_stop: OnStop) -> Result<(), Failure> {
    if on_stop == OnStop::Drain || job.cluster.durability.has_log() {
        return Ok(());
    }
    let what = "--on-stop restart: this server has no log, so its rows would end with it";
    Err(Failure::usage(what, "give it a log: --set cluster.durability=process"))
}

fn address(job: &Job, index: u32) -> Result<&str, Failure> {
    let addresses = &job.cluster.server_addresses;
    // A single address serves all servers if each has its own host or a free port.
    let address = if addresses.len() == 1 { addresses.first() } else { addresses.get(index as usize) };
    address.map(String::as_str).ok_or_else(|| {
        let what = format!("cluster.server_addresses has {} entries, none for server {index}", addresses.len());
        Failure::usage(what, "give one address per server, or one for all")
    })
}
