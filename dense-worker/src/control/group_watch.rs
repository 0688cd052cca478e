//! Ends the calls of a process group that are in vain.
//!
//! The coordinator says whether a worker of this one's group was lost, or the run is over. Then no call of the group is
//! waited for any longer.

use tokio::sync::watch;
use tokio_util::task::AbortOnDropHandle;
use zagros_collective::Interrupt;
use zagros_coordinator_client::MemberView;
use zagros_job::Mode;

/// Ends the calls of the group of this generation once the run is over, this worker is fenced, or a worker of the group is
/// lost, where the others go on without it. In mode `sync` a lost worker ends the run; it has the job's timeout to come
/// back. Asynchronous workers need all of a group only now and then, so their calls also end once a newer group has formed.
/// Watches while it lives.
pub(super) fn watch_group(
    interrupt: Interrupt,
    mut view: watch::Receiver<MemberView>,
    mode: Mode,
    generation: u64,
) -> AbortOnDropHandle<()> {
    let is_broken = move |view: &MemberView| match mode {
        Mode::Sync => false,
        Mode::Hybrid => view.broken_group >= generation,
        Mode::Async => view.broken_group >= generation || view.group > generation,
    };
    let is_in_vain = move |view: &MemberView| is_broken(view) || view.stop.is_some() || view.fenced.is_some();
    AbortOnDropHandle::new(tokio::spawn(async move {
        if view.wait_for(is_in_vain).await.is_ok() {
            interrupt.set();
        }
    }))
}
