//! The servers and workers that a run is to have, as its coordinator says.

use std::collections::BTreeSet;

use tokio::sync::watch;
use zagros_protocol::control::{Role, StatusResponse};

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WantedRoles {
    pub servers: u32,
    /// Dense workers; `None` until a scale request has asked for a number of them.
    pub workers: Option<WantedWorkers>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WantedWorkers {
    pub count: u32,
    /// Indices that no process has taken, or whose process the coordinator has given up.
    pub vacant: BTreeSet<u32>,
}

impl WantedRoles {
    /// What a scale request has asked for while the run trains. A run that ends needs no more processes.
    #[must_use]
    pub fn from_status(status: &StatusResponse) -> Option<Self> {
        let scale = status.scale.as_ref().filter(|_| status.state == "training")?;
        let holds = |index: u32| {
            let mut workers = status.members.iter().filter(|member| member.role() == Role::DenseWorker);
            workers.any(|member| member.index == index && member.state != "given up")
        };
        let count = scale.workers_wanted;
        let vacant = (0..count).filter(|index| !holds(*index)).collect();
        Some(Self { servers: scale.wanted, workers: (count > 0).then_some(WantedWorkers { count, vacant }) })
    }
}

pub(crate) async fn next(announced: &mut Option<watch::Receiver<WantedRoles>>) -> WantedRoles {
    if let Some(announced) = announced
        && announced.changed().await.is_ok()
    {
        return announced.borrow_and_update().clone();
    }
    std::future::pending().await
}

#[cfg(test)]
mod tests {
    use zagros_protocol::control::{MemberStatus, ScaleStatus};

    use super::*;

    #[test]
    fn processes_are_started_for_a_run_that_trains_and_was_scaled() {
        let role = Role::DenseWorker.into();
        let worker =
            |index, state: &str| MemberStatus { role, index, state: state.to_owned(), ..MemberStatus::default() };
        let status = |state: &str, workers_wanted| StatusResponse {
            state: state.to_owned(),
            members: vec![worker(0, "alive"), worker(1, "given up"), worker(2, "lost")],
            scale: Some(ScaleStatus { servers: 2, wanted: 4, workers_wanted, ..ScaleStatus::default() }),
            ..StatusResponse::default()
        };
        assert_eq!(WantedRoles::from_status(&status("training", 0)), Some(WantedRoles { servers: 4, workers: None }));
        let workers = Some(WantedWorkers { count: 5, vacant: [1, 3, 4].into() });
        let five = WantedRoles { servers: 4, workers };
        assert_eq!(WantedRoles::from_status(&status("training", 5)), Some(five));
        assert_eq!(WantedRoles::from_status(&status("finished", 5)), None);
        assert_eq!(WantedRoles::from_status(&StatusResponse { scale: None, ..status("training", 5) }), None);
    }
}
