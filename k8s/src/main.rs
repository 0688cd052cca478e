//! `zagros-operator`: runs the operator, or prints what it installs.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Args, Parser, Subcommand};
use kube::Client;
use tokio::net::TcpListener;
use zagros_operator::check::{check_cluster, render_objects};
use zagros_operator::crd::definition_yaml;
use zagros_operator::leader::{LeaseCandidate, LeaseHandle};
use zagros_operator::operator::{OperatorConfig, ask_coordinator, run};
use zagros_operator::probe::scale_by_coordinator;
use zagros_plumbing::Shutdown;
use zagros_plumbing::lifecycle::StopSignals;
use zagros_plumbing::metrics::Registry;
use zagros_plumbing::telemetry::{self, LogFormat};

/// The Kubernetes operator of Zagros: it makes a cluster from each HybridJob and trains the job on it.
#[derive(Debug, Parser)]
#[command(name = "zagros-operator", version, arg_required_else_help = true)]
struct OperatorArguments {
    #[command(subcommand)]
    command: OperatorCommand,
}

#[derive(Debug, Subcommand)]
enum OperatorCommand {
    /// Look after HybridJobs until a signal asks to stop.
    Run(RunArgs),
    /// Print the custom resource definition as YAML.
    Crd,
    /// Check a HybridJob and print the objects that it leads to. Needs no cluster.
    Render(RenderArgs),
    /// Ask Kubernetes whether an operator has all that it needs here, and who leads. Changes nothing.
    Check(OperatorPlace),
}

#[derive(Debug, Args)]
struct OperatorPlace {
    /// Look after this namespace only. A Role then suffices; otherwise a ClusterRole is needed.
    #[arg(long, env = "WATCH_NAMESPACE", value_name = "NAME")]
    namespace: Option<String>,
    /// Namespace of the lease that decides who leads. Without it, this operator leads from the start.
    #[arg(long, env = "POD_NAMESPACE", value_name = "NAME")]
    lease_namespace: Option<String>,
}

#[derive(Debug, Args)]
struct HostAccess {
    /// Admit HybridJobs with hostPath volumes and privileged containers: who may create HybridJobs then controls the nodes.
    #[arg(long)]
    allow_host_access: bool,
}

#[derive(Debug, Args)]
struct RenderArgs {
    #[command(flatten)]
    host: HostAccess,
    /// The HybridJob (YAML).
    #[arg(value_name = "FILE")]
    job: PathBuf,
    /// The job file (TOML), if the HybridJob names a ConfigMap.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
}

#[derive(Debug, Args)]
struct RunArgs {
    #[command(flatten)]
    place: OperatorPlace,
    #[command(flatten)]
    host: HostAccess,
    /// Name of this operator in the lease and in Events.
    #[arg(long, env = "POD_NAME", default_value = "zagros-operator", value_name = "NAME")]
    identity: String,
    /// Address of health and metrics.
    #[arg(long, default_value = "0.0.0.0:8080", value_name = "ADDRESS")]
    admin: SocketAddr,
    /// Write log lines as JSON objects.
    #[arg(long)]
    log_json: bool,
}

#[tokio::main]
async fn main() -> ExitCode {
    let result = match OperatorArguments::parse().command {
        OperatorCommand::Crd => print_definition(),
        OperatorCommand::Render(args) => print_objects(&args),
        OperatorCommand::Run(args) => start(args).await,
        OperatorCommand::Check(place) => print_findings(place).await,
    };
    match result {
        Ok(code) => code,
        Err(message) => {
            eprintln!("error: {message}");
            ExitCode::FAILURE
        }
    }
}

fn print_definition() -> Result<ExitCode, String> {
    print!("{}", definition_yaml().map_err(|error| error.to_string())?);
    Ok(ExitCode::SUCCESS)
}

fn print_objects(args: &RenderArgs) -> Result<ExitCode, String> {
    let read = |path: &Path| std::fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()));
    let config = args.config.as_deref().map(read).transpose()?;
    let rendered = render_objects(&read(&args.job)?, config.as_deref(), args.host.allow_host_access);
    print!("{}", rendered.map_err(|error| format!("{}: {error}", args.job.display()))?);
    Ok(ExitCode::SUCCESS)
}

/// Prints all findings at once.
async fn print_findings(place: OperatorPlace) -> Result<ExitCode, String> {
    let (namespace, lease) = (given(place.namespace), given(place.lease_namespace));
    let found = check_cluster(&client().await?, namespace.as_deref(), lease.as_deref()).await;
    let found = found.map_err(|error| error.to_string())?;
    found.good.iter().for_each(|good| println!("{good}"));
    found.problems.iter().for_each(|problem| eprintln!("error: {problem}"));
    Ok(if found.problems.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

async fn client() -> Result<Client, String> {
    Client::try_default().await.map_err(|error| {
        format!("cannot find Kubernetes: {error}; run it in a pod with a service account, or set KUBECONFIG")
    })
}

/// An empty variable counts as none.
fn given(namespace: Option<String>) -> Option<String> {
    namespace.filter(|namespace| !namespace.is_empty())
}

async fn start(args: RunArgs) -> Result<ExitCode, String> {
    let format = if args.log_json { LogFormat::Json } else { LogFormat::Text };
    telemetry::install_subscriber(format, "info,kube=warn");
    let client = client().await?;
    let admin = TcpListener::bind(args.admin).await.map_err(|error| {
        format!("cannot listen on {}: {error}; choose another address with --admin HOST:PORT", args.admin)
    })?;
    let shutdown = Shutdown::new();
    let signals = StopSignals::install_handlers(shutdown.clone(), second_signal).map_err(|error| error.to_string())?;
    let lease = given(args.place.lease_namespace).map(|namespace| keep_lease(namespace, args.identity.clone()));
    let config = OperatorConfig {
        client,
        namespace: given(args.place.namespace),
        identity: args.identity,
        lease: lease.transpose()?,
        allows_host_access: args.host.allow_host_access,
        admin,
        registry: Registry::new(),
        asker: ask_coordinator(),
        scaler: scale_by_coordinator(),
        clock: std::sync::Arc::new(k8s_openapi::jiff::Timestamp::now),
    };
    run(config, shutdown).await.map_err(|error| error.to_string())?;
    Ok(signals.exit_code().map_or(ExitCode::SUCCESS, |code| ExitCode::from(code as u8)))
}

fn keep_lease(namespace: String, identity: String) -> Result<LeaseHandle, String> {
    let candidate = async move || Ok(LeaseCandidate::new(client().await?, &namespace, &identity));
    LeaseHandle::keep_apart(candidate).map_err(|error| format!("cannot start a thread for the lease: {error}"))
}

/// A second signal ends the process at once.
#[expect(clippy::disallowed_methods, reason = "someone who sends a second signal will not wait for guards")]
fn second_signal(code: i32) -> ! {
    std::process::exit(code)
}
