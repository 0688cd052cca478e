//! A file for Prometheus' service discovery, which lists the roles of a run.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::{Value, json};
use tokio::task::JoinHandle;
use zagros_job::Job;
use zagros_plumbing::{Deadline, durable};
use zagros_shell::{Announcement, Exit, Failure};

use zagros_launch::RoleName;

/// How often roles that have not announced themselves are looked for.
const LOOK: Duration = Duration::from_millis(100);

/// The file of one run. It grows as roles announce their addresses.
pub(crate) struct Targets {
    file: PathBuf,
    looking: JoinHandle<()>,
}

impl Targets {
    /// Empties `file` and lists in it the roles of `job` that announce themselves below `run` within `timeout`.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub(crate) fn follow(file: &Path, run: &Path, job: &Job) -> Result<Self, Failure> {
        write(file, &[]).map_err(|error| {
            let what = format!("{} cannot be written (--prometheus-targets): {error}", file.display());
            Failure::with_help(Exit::Usage, what, "name a file in a folder that this user may write to")
        })?;
        let roles = roles(job);
        for role in &roles {
            // An earlier process may have left the file.
            let _ = std::fs::remove_file(role.announcement(run));
        }
        let listing = Listing { file: file.to_owned(), run: run.to_owned(), roles };
        let looking = tokio::spawn(listing.look(job.cluster.timeout));
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
struct Listing {
    file: PathBuf,
    run: PathBuf,
    roles: Vec<RoleName>,
}

impl Listing {
    async fn look(self, timeout: Duration) {
        let deadline = Deadline::after(timeout);
        let mut listed = 0;
        while listed < self.roles.len() && !deadline.is_past() {
            let found = self.found();
            if found.len() > listed {
                listed = found.len();
                if let Err(error) = write(&self.file, &found) {
                    let file = self.file.display();
                    tracing::warn!("{file} cannot be written, so Prometheus does not find all roles: {error}");
                    return;
                }
            }
            tokio::time::sleep(LOOK).await;
        }
    }

    /// One entry for each role that listens.
    fn found(&self) -> Vec<Value> {
        let run = self.run.file_name().unwrap_or_default().to_string_lossy();
        let group = |role: &RoleName| {
            let announced = Announcement::read(&role.announcement(&self.run))?;
            let (word, index) = role.word_and_index();
            let labels = json!({ "role": word, "index": index.to_string(), "run": run });
            Some(json!({ "targets": [announced.admin], "labels": labels }))
        };
        self.roles.iter().filter_map(group).collect()
    }
}

fn roles(job: &Job) -> Vec<RoleName> {
    let servers = (0..job.cluster.servers).map(RoleName::EmbeddingServer);
    let workers = (0..job.cluster.workers).map(RoleName::DenseWorker);
    std::iter::once(RoleName::Coordinator).chain(servers).chain(workers).collect()
}

fn write(file: &Path, groups: &[Value]) -> io::Result<()> {
    if let Some(folder) = file.parent() {
        std::fs::create_dir_all(folder)?;
    }
    durable::write(file, serde_json::to_string_pretty(groups)?.as_bytes()).map_err(durable::naming(file))
}

#[cfg(test)]
mod tests {
    use super::*;
    use zagros_job::Overrides;

    fn job() -> Job {
        let text = "[data]\nformat = 'criteo'\ntrain = 'a.txt'\n[cluster]\nservers = 1\ntimeout_seconds = 20\n";
        Job::parse(text, Path::new("job.toml"), &Overrides::none()).unwrap()
    }

    fn announce(run: &Path, role: RoleName, admin: &str) {
        let announced =
            Announcement { role: role.file_name(), pid: 1, address: String::new(), admin: admin.to_owned() };
        announced.write(&role.announcement(run)).unwrap();
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
        let targets = Targets::follow(&file, &run, &job()).unwrap();
        announce(&run, RoleName::Coordinator, "127.0.0.1:1");
        let timeout = Duration::from_secs(20);
        tokio::time::timeout(timeout, groups(&file, 1)).await.expect("the coordinator is listed");
        announce(&run, RoleName::EmbeddingServer(0), "127.0.0.1:2");
        announce(&run, RoleName::DenseWorker(0), "127.0.0.1:3");
        let listed = tokio::time::timeout(timeout, groups(&file, 3)).await.expect("all are listed");
        let server =
            json!({ "targets": ["127.0.0.1:2"], "labels": { "role": "server", "index": "0", "run": "small-1" } });
        assert_eq!(listed[1], server);
        targets.end(true);
        assert_eq!(std::fs::read_to_string(&file).unwrap(), "[]");
    }

    #[tokio::test]
    async fn a_failed_run_leaves_its_roles_listed() {
        let folder = tempfile::tempdir().unwrap();
        let (run, file) = (folder.path().join("small-1"), folder.path().join("local.json"));
        let targets = Targets::follow(&file, &run, &job()).unwrap();
        announce(&run, RoleName::Coordinator, "127.0.0.1:1");
        tokio::time::timeout(Duration::from_secs(20), groups(&file, 1)).await.expect("the coordinator is listed");
        targets.end(false);
        assert!(std::fs::read_to_string(&file).unwrap().contains("127.0.0.1:1"));
    }

    #[tokio::test]
    async fn a_file_that_cannot_be_written_is_refused_by_name() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("file"), "").unwrap();
        let refused = Targets::follow(&folder.path().join("file/below.json"), folder.path(), &job()).err();
        let text = format!("{:?}", refused.expect("refused"));
        assert!(text.contains("below.json") && text.contains("--prometheus-targets"), "{text}");
    }
}
