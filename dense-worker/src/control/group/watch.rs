//! Ends the calls of a process group that are in vain.
//!
//! The coordinator says whether a worker of this one's group was lost, or the run is over. Then no call of the group is
//! waited for any longer.

use tokio::sync::watch;
use tokio_util::task::AbortOnDropHandle;
use zagros_collective::GroupInterrupt;
use zagros_coordinator_client::MemberView;
use zagros_job::Mode;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum GroupStage {
    /// Its workers meet. One that learns of a newer group first goes there and never comes to this one, so no worker waits for it.
    Forming,
    /// It trains, and is left between two steps by all of its workers together.
    Formed,
}

/// Ends the calls of the group of this generation once the run is over, this worker is fenced, or a worker of the group is
/// lost, where the others go on without it. In mode `sync` a lost worker ends the run; it has the job's timeout to come
/// back. Asynchronous workers need all of a group only now and then, so their calls also end once a newer group has formed.
/// Watches while it lives.
pub(super) fn watch_group(
    interrupt: GroupInterrupt,
    mut view: watch::Receiver<MemberView>,
    (mode, stage): (Mode, GroupStage),
    generation: u64,
) -> AbortOnDropHandle<()> {
    let is_broken = move |view: &MemberView| match (mode, stage) {
        (Mode::Sync, _) => false,
        (Mode::Hybrid, GroupStage::Formed) => view.broken_group >= generation,
        (Mode::Hybrid, GroupStage::Forming) | (Mode::Async, _) => {
            view.broken_group >= generation || view.group > generation
        }
    };
    let is_in_vain = move |view: &MemberView| is_broken(view) || view.stop.is_some() || view.fenced.is_some();
    AbortOnDropHandle::new(tokio::spawn(async move {
        if view.wait_for(is_in_vain).await.is_ok() {
            interrupt.set();
        }
    }))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    /// Whether the calls of group 3 end once the coordinator says this.
    async fn ends(mode: Mode, stage: GroupStage, said: MemberView) -> bool {
        let (tell, view) = watch::channel(MemberView { group: 3, ..MemberView::default() });
        let interrupt = GroupInterrupt::default();
        let watching = watch_group(interrupt.clone(), view, (mode, stage), 3);
        tell.send(said).unwrap();
        // The clock is paused: it goes on once the watcher has nothing to do.
        tokio::time::sleep(Duration::from_millis(1)).await;
        assert_eq!(interrupt.is_set(), watching.is_finished());
        watching.is_finished()
    }

    /// Two workers join one shortly after the other: the first one's group is never met by those that hear of both.
    #[tokio::test(start_paused = true)]
    async fn a_group_that_forms_is_given_up_for_a_newer_one_and_one_that_trains_is_not() {
        let view = MemberView { group: 3, ..MemberView::default() };
        for (mode, stage, is_given_up) in [
            (Mode::Hybrid, GroupStage::Forming, true),
            (Mode::Hybrid, GroupStage::Formed, false),
            (Mode::Async, GroupStage::Formed, true),
            (Mode::Sync, GroupStage::Forming, false),
        ] {
            assert!(!ends(mode, stage, view.clone()).await, "{mode:?} {stage:?}: it is the newest");
            let newer = MemberView { group: 4, ..view.clone() };
            assert_eq!(ends(mode, stage, newer).await, is_given_up, "{mode:?} {stage:?}");
            let broken = MemberView { broken_group: 3, ..view.clone() };
            assert_eq!(ends(mode, stage, broken).await, mode != Mode::Sync, "{mode:?} {stage:?}");
            assert!(ends(mode, stage, MemberView { stop: Some("over".to_owned()), ..view.clone() }).await);
        }
    }
}
