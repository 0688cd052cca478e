//! Drains: a process is asked to end, and the workers save and leave before the run is over.

use super::reports::ask_to_end;
use super::*;

const REASON: &str = "the coordinator was asked to end";

#[test]
fn a_server_that_is_asked_to_end_drains_the_run() {
    let (mut core, server, worker) = running();
    assert!(!ask_to_end(&mut core, 1, &server).stop);
    let response = beat(&mut core, 2, &worker).unwrap();
    assert_eq!((response.draining.as_str(), response.stop), ("embedding server 0 was asked to end", false));
    let events = core.take_events().iter().map(ToString::to_string).collect::<Vec<_>>();
    assert_eq!(events, ["embedding server 0 was asked to end; waiting until dense worker 0 saved and left"]);
    assert_eq!(core.drain_waits_for(), "dense worker 0");
    assert!(matches!(assign(&mut core, 2, &worker, 0), Ok(Work::Split(_))), "training goes on");
    // Later reasons change nothing.
    core.drain_run(time(2), REASON);
    leave(&mut core, &worker, Outcome::Finished, "").unwrap();
    assert!(ask_to_end(&mut core, 3, &server).stop);
}

#[test]
fn a_drain_without_workers_ends_at_once() {
    let mut core = core(1, 1);
    let server = join(&mut core, 0, MemberSlot::server(0));
    core.drain_run(time(1), REASON);
    assert!(beat(&mut core, 1, &server).unwrap().stop);
    assert_eq!(core.outcome(), Some(&RunOutcome::Interrupted(REASON.to_owned())));
}

#[test]
fn a_drain_does_not_wait_for_a_worker_that_is_lost_or_cannot_save() {
    let (mut core, server, worker) = running();
    core.drain_run(time(1), REASON);
    hear(&mut core, [5, 9, 12], &[&server]);
    assert_eq!(core.outcome(), Some(&RunOutcome::Interrupted(REASON.to_owned())), "the worker is lost");
    let (mut core, server, worker) = (running().0, server, worker);
    core.drain_run(time(1), REASON);
    for second in [5, 9, 12] {
        let _ = beat(&mut core, second, &worker);
    }
    let outcome = core.outcome().map(RunOutcome::to_string).unwrap_or_default();
    assert!(outcome.starts_with("run failed") && outcome.contains("embedding server 0 is gone"), "{outcome}");
    assert!(beat(&mut core, 12, &server).is_ok_and(|response| response.stop));
}
