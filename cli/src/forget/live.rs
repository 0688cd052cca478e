//! Rows of a run that trains: its embedding servers remove them.
//!
//! ```text
//! 1 the run folder's list of forgotten ids     a state that is loaded later loses them, too
//! 2 every embedding server                     memory, cold tier, log; repeated while buckets move or a save is written
//! 3 the audit file
//! 4 the save that was being written            is waited for
//! 5 which saves still hold the rows            for a person: they were written before
//! ```
//!
//! A kill after any step loses nothing: the same command does all of them again.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use zagros_coordinator_client::GrpcControlPlane;
use zagros_dense_worker::{forget_rows, note_forgotten};
use zagros_embedding_client::{ClientConfig, Connect, EmbeddingClient, GrpcShard};
use zagros_plumbing::Deadline;
use zagros_protocol::control::ServerEntry;
use zagros_protocol::datapath::Encoding;
use zagros_rows::snapshot::ForgottenIds;
use zagros_shell::{Exit, Failure, FoundCoordinator, OrFailure};
use zagros_store::Folder;

use super::apply::note_live;
use super::places::{is_state, job};
use super::{ForgetPlace, ForgetPlan};
use crate::resume::failed;
use crate::saved::table_help;

/// Time within which a checkpoint that is being written is complete, unless its process has ended.
const SOON: Duration = Duration::from_secs(10);
const PAUSE: Duration = Duration::from_millis(200);

#[derive(Debug)]
pub(crate) struct LiveRemoval {
    /// Those that the servers have removed, which had a row or a frequency count. `None` if they were not asked.
    pub(crate) removed: Option<BTreeSet<u64>>,
    /// What saves of before say of the ids. An error where they could not be read, perhaps because the run has deleted one meanwhile.
    pub(crate) plan: Result<ForgetPlan, Failure>,
}

/// Removes the rows from the servers of a run that trains, unless `dry_run`.
pub(crate) async fn forget_live(
    run: &Path,
    coordinator: &FoundCoordinator,
    wanted: &ForgottenIds,
    (dry_run, timeout): (bool, Duration),
) -> Result<LiveRemoval, Failure> {
    check_table(run, &wanted.table)?;
    let mut removed = None;
    if !dry_run {
        note_forgotten(run, &wanted.table, &wanted.ids).map_err(|error| {
            let help = "nothing is removed; make room, and give the command again";
            Failure::with_help(Exit::Storage, error.to_string(), help)
        })?;
        let client = client(coordinator, timeout)?;
        let done = forget_rows(&client, &wanted.table, &wanted.ids).await.map_err(|error| {
            let what = format!("not every embedding server has removed the rows: {error}");
            let help = "give the same command again; a run that goes back to an earlier state removes them by itself";
            Failure::with_help(failed(error).exit_status(), what, help)
        })?;
        note_live(&Folder::on_disk(run), wanted, &done)?;
        removed = Some(done);
    }
    let plan = written_saves(run, timeout).await.and_then(|place| ForgetPlan::prepare(&place, wanted));
    Ok(LiveRemoval { removed, plan })
}

/// The saves of a run that trains, once the one is complete that was being written when the servers removed the rows: its files may be of
/// before. A save that does not become complete soon was left by a process that ended.
async fn written_saves(run: &Path, timeout: Duration) -> Result<ForgetPlace, Failure> {
    let deadline = Deadline::from_now(SOON.min(timeout));
    let mut place = ForgetPlace::of_live_run(run, timeout)?;
    let incomplete = |place: &ForgetPlace| {
        let states = place.others.iter().filter(|folder| folder.name().is_some_and(is_state));
        states.map(ToString::to_string).collect::<BTreeSet<_>>()
    };
    let unfinished = incomplete(&place);
    while !unfinished.is_disjoint(&incomplete(&place)) && !deadline.is_past() {
        tokio::time::sleep(PAUSE).await;
        place = ForgetPlace::of_live_run(run, timeout)?;
    }
    Ok(place)
}

/// A table that is in the list and not in the job would end each later load.
fn check_table(run: &Path, table: &str) -> Result<(), Failure> {
    let job = job(run)?;
    let names: Vec<&str> = job.tables.iter().map(|table| table.name.as_str()).collect();
    if names.contains(&table) {
        return Ok(());
    }
    Err(Failure::usage(format!("there is no table `{table}`"), table_help(table, &names, "the")))
}

/// Asks servers, and pushes nothing: it is no writer.
fn client(coordinator: &FoundCoordinator, timeout: Duration) -> Result<EmbeddingClient, Failure> {
    let FoundCoordinator { address, credentials } = coordinator.clone();
    let control = GrpcControlPlane::connect(&address, timeout, &credentials).or_exit(Exit::Usage)?;
    let connect: Connect = Arc::new(move |entry: &ServerEntry| GrpcShard::connect(entry, timeout, &credentials));
    let config = ClientConfig { writer: 0, incarnation: 0, wire: Encoding::F32, timeout };
    Ok(EmbeddingClient::new(config, Arc::new(control), connect))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The second look finds the manifest that came after the first one.
    #[tokio::test]
    async fn a_checkpoint_that_is_being_written_is_waited_for() {
        let run = tempfile::tempdir().unwrap();
        let states = ["checkpoints/resume-1", "checkpoints/resume-2"].map(|state| run.path().join(state));
        states.iter().for_each(|state| std::fs::create_dir_all(state).unwrap());
        std::fs::write(states[0].join("manifest.json"), "{}").unwrap();
        let late = states[1].join("manifest.json");
        let written = tokio::spawn(async move {
            tokio::time::sleep(PAUSE).await;
            std::fs::write(late, "{}").unwrap();
        });
        let place = written_saves(run.path(), SOON).await.unwrap();
        let late = place.others.iter().filter(|other| other.name() == Some("resume-2")).count();
        assert_eq!((place.saves.len(), late), (2, 0));
        written.await.unwrap();
        // One that was left stays what it is.
        std::fs::remove_file(states[1].join("manifest.json")).unwrap();
        assert_eq!(written_saves(run.path(), PAUSE).await.unwrap().saves.len(), 1);
    }

    #[test]
    fn a_table_that_the_run_does_not_have_is_refused_before_anything_is_noted() {
        let run = tempfile::tempdir().unwrap();
        let job = "name = 'ads'\n[data]\nformat = 'criteo'\ntrain = '/a'\n";
        std::fs::write(run.path().join("job.toml"), job).unwrap();
        assert!(check_table(run.path(), "C9").is_ok());
        let refused = format!("{:?}", check_table(run.path(), "C91").unwrap_err());
        assert!(refused.contains("there is no table `C91`") && refused.contains("did you mean `C9`?"), "{refused}");
    }
}
