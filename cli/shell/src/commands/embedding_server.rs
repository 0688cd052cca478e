//! `embedding-server`: one shard of a job's rows, in this process.

use std::sync::Arc;

use zagros_embedding_server::{ServerConfig, ServerEnd};
use zagros_job::Job;
use zagros_protocol::ServerIndex;

use crate::args::{OnStop, ServerArgs};
use crate::exit::{Exit, Failure, OrFailure};
use crate::folders::check_folders;
use crate::port::RolePort;
use crate::role::Role;
use crate::start::load_job;

/// The runtime needs it before it starts.
pub(super) fn threads(args: &ServerArgs) -> Result<usize, Failure> {
    Ok(load_job(args.config.job_file(), &args.config.sets)?.cluster.server_threads)
}

pub(super) async fn run(args: ServerArgs) -> Result<Exit, Failure> {
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
