//! A file for Prometheus' service discovery, which lists the roles of a run.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use zagros_job::Job;
use zagros_plumbing::durable;
use zagros_shell::{Announcement, Failure};

use zagros_shell::launch::{RoleName, WantedRoles};

/// How often roles are looked for: those that have not announced themselves, and those whose processes were started again elsewhere.
const LOOK: Duration = Duration::from_millis(250);

/// The file of one run. It follows the roles that the run has, and where they listen.
pub(crate) struct ScrapeTargets {
    file: PathBuf,
    looking: JoinHandle<()>,
}

impl ScrapeTargets {
    /// Empties `file` and lists in it the roles that announce themselves below `run`: those of `job`, and as many as are `wanted`
    /// once a scale request has asked for another number.
    pub(crate) fn follow(
        file: &Path,
        run: &Path,
        job: &Job,
        wanted: watch::Receiver<WantedRoles>,
    ) -> Result<Self, Failure> {
        write(file, &[]).map_err(|error| {
            let what = format!("{} cannot be written (--prometheus-targets): {error}", file.display());
            Failure::usage(what, "name a file in a folder that this user may write to")
        })?;
        forget_announcements(run);
        let (servers, workers) = (job.cluster.servers, job.cluster.workers);
        let listing = TargetListing { file: file.to_owned(), run: run.to_owned(), servers, workers, wanted };
        let looking = tokio::spawn(listing.look());
        Ok(Self { file: file.to_owned(), looking })
    }

    /// Ends the listing. A run that ended well has no targets left. Those of a failed run stay, so that alerts fire.
    pub(crate) fn end(self, well: bool) {
        self.looking.abort();
        if well && let Err(error) = write(&self.file, &[]) {
            tracing::warn!("{} still lists the roles of this run: {error}", self.file.display());
        }
    }
}

/// The roles to look for, and the file that lists them.
struct TargetListing {
    file: PathBuf,
    run: PathBuf,
    servers: u32,
    workers: u32,
    wanted: watch::Receiver<WantedRoles>,
}

impl TargetListing {
    async fn look(self) {
        let mut listed = Vec::new();
        loop {
            let found = self.found(&self.roles());
            if found != listed {
                if let Err(error) = write(&self.file, &found) {
                    let file = self.file.display();
                    tracing::warn!("{file} cannot be written, so Prometheus does not find all roles: {error}");
                    return;
                }
                listed = found;
            }
            tokio::time::sleep(LOOK).await;
        }
    }

    /// The roles that the run is to have. A role that is lost stays, so that alerts fire. One that is not wanted any more goes.
    fn roles(&self) -> Vec<RoleName> {
        let wanted = self.wanted.borrow();
        // Until a scale request asks for another number, none is known.
        let servers = if wanted.servers == 0 { self.servers } else { wanted.servers };
        let workers = wanted.workers.as_ref().map_or(self.workers, |workers| workers.count);
        let (servers, workers) = ((0..servers).map(RoleName::EmbeddingServer), (0..workers).map(RoleName::DenseWorker));
        std::iter::once(RoleName::Coordinator).chain(servers).chain(workers).collect()
    }

    fn found(&self, roles: &[RoleName]) -> Vec<Value> {
        let run = self.run.file_name().unwrap_or_default().to_string_lossy();
        let group = |role: &RoleName| {
            let announced = Announcement::read(&role.announcement_file(&self.run))?;
            let (word, index) = role.word_and_index();
            let labels = json!({ "role": word, "index": index.to_string(), "run": run });
            Some(json!({ "targets": [announced.admin], "labels": labels }))
        };
        roles.iter().filter_map(group).collect()
    }
}

/// Earlier processes may have left their files.
fn forget_announcements(run: &Path) {
    let coordinator = RoleName::Coordinator.announcement_file(run);
    let entries = coordinator.parent().and_then(|folder| std::fs::read_dir(folder).ok());
    for announcement in entries.into_iter().flatten().flatten().map(|entry| entry.path()) {
        if announcement.extension() == coordinator.extension() {
            let _ = std::fs::remove_file(announcement);
        }
    }
}

fn write(file: &Path, groups: &[Value]) -> io::Result<()> {
    if let Some(folder) = file.parent() {
        std::fs::create_dir_all(folder)?;
    }
    durable::write(file, serde_json::to_string_pretty(groups)?.as_bytes()).map_err(durable::add_path(file))
}

#[cfg(test)]
mod tests {
    use super::*;
    use zagros_job::Overrides;
    use zagros_shell::launch::WantedWorkers;

    fn job() -> Job {
        let text = "[data]\nformat = 'criteo'\ntrain = 'a.txt'\n[cluster]\nservers = 1\ntimeout_seconds = 20\n";
        Job::parse(text, Path::new("job.toml"), &Overrides::none()).unwrap()
    }

    fn announce(run: &Path, role: RoleName, admin: &str) {
        let announced =
            Announcement { role: role.file_name(), pid: 1, address: String::new(), admin: admin.to_owned() };
        announced.write(&role.announcement_file(run)).unwrap();
    }

    async fn groups(file: &Path, count: usize) -> Value {
        loop {
            let groups: Value = serde_json::from_slice(&std::fs::read(file).unwrap()).unwrap();
            if groups.as_array().unwrap().len() == count {
                return groups;
            }
            tokio::time::sleep(LOOK).await;
        }
    }

    #[tokio::test]
    async fn roles_are_listed_as_they_start_and_removed_after_a_good_end() {
        let folder = tempfile::tempdir().unwrap();
        let (run, file) = (folder.path().join("small-1"), folder.path().join("targets/local.json"));
        announce(&run, RoleName::EmbeddingServer(0), "127.0.0.1:9");
        let wanted = watch::Sender::new(WantedRoles::default());
        let targets = ScrapeTargets::follow(&file, &run, &job(), wanted.subscribe()).unwrap();
        announce(&run, RoleName::Coordinator, "127.0.0.1:1");
        let timeout = Duration::from_secs(20);
        tokio::time::timeout(timeout, groups(&file, 1)).await.expect("the coordinator is listed");
        announce(&run, RoleName::EmbeddingServer(0), "127.0.0.1:2");
        announce(&run, RoleName::DenseWorker(0), "127.0.0.1:3");
        let listed = tokio::time::timeout(timeout, groups(&file, 3)).await.expect("all are listed");
        let server =
            json!({ "targets": ["127.0.0.1:2"], "labels": { "role": "server", "index": "0", "run": "small-1" } });
        assert_eq!(listed[1], server);
        // Another process takes the place of the worker, then a server joins, then the worker is not wanted any more.
        announce(&run, RoleName::DenseWorker(0), "127.0.0.1:4");
        announce(&run, RoleName::EmbeddingServer(1), "127.0.0.1:5");
        wanted.send_replace(WantedRoles { servers: 2, workers: None });
        let listed = tokio::time::timeout(timeout, groups(&file, 4)).await.expect("the server is listed");
        assert_eq!([&listed[2]["targets"][0], &listed[3]["targets"][0]], ["127.0.0.1:5", "127.0.0.1:4"]);
        let workers = Some(WantedWorkers::default());
        wanted.send_replace(WantedRoles { servers: 1, workers });
        tokio::time::timeout(timeout, groups(&file, 2)).await.expect("coordinator and server are left");
        targets.end(true);
        assert_eq!(std::fs::read_to_string(&file).unwrap(), "[]");
    }

    #[tokio::test]
    async fn a_failed_run_leaves_its_roles_listed() {
        let folder = tempfile::tempdir().unwrap();
        let (run, file) = (folder.path().join("small-1"), folder.path().join("local.json"));
        let wanted = watch::Sender::new(WantedRoles::default());
        let targets = ScrapeTargets::follow(&file, &run, &job(), wanted.subscribe()).unwrap();
        announce(&run, RoleName::Coordinator, "127.0.0.1:1");
        tokio::time::timeout(Duration::from_secs(20), groups(&file, 1)).await.expect("the coordinator is listed");
        targets.end(false);
        assert!(std::fs::read_to_string(&file).unwrap().contains("127.0.0.1:1"));
    }
}
