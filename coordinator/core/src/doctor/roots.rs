//! The root of a hang in words: what is wrong with it, and what to do.

use std::time::Duration;

use zagros_protocol::control::WaitKind;

use crate::doctor::finding::{Finding, FindingKind, Severity, time};
use crate::doctor::graph::{SILENT, WaitNode};
use crate::doctor::observation::{
    CoordinatorSign, Observation, ObservedMember, ObservedProcess, Party, ProcessState, wait_age,
};
use crate::{MemberSlot, Role};

/// What is said of a root, besides who waits for it. A member has waited for it for `waited` at the longest; zero if no member waits for it.
pub(crate) fn root_cause(observation: &Observation, node: WaitNode, waited: Duration) -> Finding {
    match node {
        WaitNode::Coordinator => coordinator(observation, waited),
        WaitNode::Data(slot) => data(observation, slot, waited),
        WaitNode::Disk(slot) => disk_cause(observation, slot, waited),
        WaitNode::Member(slot) => match observation.find_member(slot) {
            None => missing(observation, slot),
            Some(member) => silent_cause(observation, member).unwrap_or_else(|| heard(member, waited)),
        },
    }
}

/// A member that is silent, lost or stopped; `None` for one that is heard.
pub(crate) fn silent_cause(observation: &Observation, member: &ObservedMember) -> Option<Finding> {
    let (slot, silence) = (member.slot, time(member.silent));
    let process = observation.newest_process(Party::Member(slot));
    // A process may be stopped for too short a time to be missed.
    let is_stopped = process.is_some_and(|process| process.state == ProcessState::Stopped);
    let what = match member.state.as_str() {
        "left" | "given up" => return None,
        "alive" if member.silent < SILENT && !is_stopped => return None,
        "alive" => format!("{slot} shows no sign of life since {silence}"),
        "away" => format!("{slot} is away: no sign of life since {silence}; its rows are in its log"),
        _ => format!(
            "{slot} is lost: no sign of life since {silence}, longer than its lease of {}",
            time(observation.lease)
        ),
    };
    let unknown = "it was killed, or its machine cannot be reached".to_owned();
    let (why, next) = process.map_or_else(
        || (unknown, elsewhere(slot)),
        |process| of_process(observation, process).unwrap_or_else(|| unheard(process)),
    );
    let is_reachable = process.is_some_and(|process| process.answers == Some(true) && !is_stopped);
    let kind = if is_reachable { FindingKind::Unreachable } else { FindingKind::MemberSilent };
    let since_seconds = Some(member.silent.as_secs_f64());
    Some(Finding { since_seconds, why: vec![why], ..Finding::trouble(kind, slot.to_string(), what, next) })
}

/// What the operating system says of a process; `None` where it lives.
fn of_process(observation: &Observation, process: &ObservedProcess) -> Option<(String, String)> {
    let ObservedProcess { party, pid, state, end, .. } = process;
    match state {
        ProcessState::Lives => None,
        ProcessState::Stopped => Some((
            format!("its process {pid} on this machine is stopped by a signal (SIGSTOP, a debugger, Ctrl-Z)"),
            format!("let it go on: kill -CONT {pid}"),
        )),
        ProcessState::DiskSleep => Some((
            format!(
                "its process {pid} on this machine waits for a disk or a network file system, and no signal reaches it"
            ),
            "look at that disk: `dmesg`, `iostat -x 1`; the process goes on when the disk answers".to_owned(),
        )),
        ProcessState::Gone => {
            let how = end.as_ref().map_or_else(|| "has ended".to_owned(), |end| end.how.clone());
            Some((format!("its process {pid} on this machine {how}"), after_end(observation, *party)))
        }
    }
}

fn after_end(observation: &Observation, party: Party) -> String {
    match party {
        Party::Member(slot) if observation.is_live() => {
            format!("`zagros up` starts it again where the run can go on; by hand: {}", start(slot))
        }
        _ => "the same command starts the run again; it goes on from its newest checkpoint".to_owned(),
    }
}

fn unheard(process: &ObservedProcess) -> (String, String) {
    let pid = process.pid;
    match process.answers {
        Some(true) => (
            format!("its process {pid} on this machine lives and answers; the coordinator does not hear it"),
            "check the way from it to the coordinator: firewall, network, `cluster.coordinator` in its job file"
                .to_owned(),
        ),
        Some(false) => (
            format!("its process {pid} on this machine lives, and its HTTP port does not answer either"),
            format!("see what it does: `cat /proc/{pid}/stack`, `gdb -p {pid}`; ending it (kill {pid}) frees its slot"),
        ),
        None => (
            format!("its process {pid} on this machine lives"),
            "ask it: `zagros health ADMIN_ADDRESS`; its log says what it did last".to_owned(),
        ),
    }
}

fn elsewhere(slot: MemberSlot) -> String {
    let loss = match slot.role {
        Role::EmbeddingServer => "with a log (`cluster.durability`) it comes back with its rows",
        Role::DenseWorker => "in mode hybrid the others go on with it",
    };
    format!(
        "look at its machine, its last log lines and `dmesg`; if it is gone, start it again: {}; {loss}",
        start(slot)
    )
}

fn start(slot: MemberSlot) -> String {
    let command = match slot.role {
        Role::EmbeddingServer => "embedding-server",
        Role::DenseWorker => "dense-worker",
    };
    format!("zagros {command} JOB --index {}", slot.index)
}

fn missing(observation: &Observation, slot: MemberSlot) -> Finding {
    let process = observation.newest_process(Party::Member(slot));
    let (why, next) = match process.map(|process| of_process(observation, process).unwrap_or_else(|| unheard(process)))
    {
        Some((why, next)) => (vec![why], next),
        None => {
            (Vec::new(), format!("start it: {}; if it runs, check `cluster.coordinator` in its job file", start(slot)))
        }
    };
    let what = format!("{slot} has not joined the run");
    Finding { why, ..Finding::trouble(FindingKind::MemberMissing, slot.to_string(), what, next) }
}

fn heard(member: &ObservedMember, waited: Duration) -> Finding {
    let slot = member.slot;
    let (kind, what, why, next) = match slot.role {
        _ if member.state != "alive" => (
            FindingKind::MemberSilent,
            format!("{slot} has left the run, and is still waited for"),
            Vec::new(),
            "a member that waits for it gives up at its timeout; the log of the coordinator says why it left"
                .to_owned(),
        ),
        Role::EmbeddingServer => (
            FindingKind::ServerSlow,
            format!("{slot} is heard, and has left requests unanswered for {}", time(waited)),
            vec![format!("its heartbeats come; it works on {} requests", member.under_way)],
            format!(
                "if it works on none, workers cannot reach {}: check firewall and `--advertise`; otherwise it is \
                 overloaded: look at its processor, memory and disk",
                if member.address.is_empty() { "its address" } else { &member.address }
            ),
        ),
        Role::DenseWorker => {
            let work = member.waits.iter().filter(|wait| wait.kind() == WaitKind::Work).max_by_key(|wait| wait.age_ms);
            let doing = work.map_or_else(
                || format!("made its last step {} ago", time(member.still.unwrap_or(waited))),
                |work| format!("has worked on {} for {}", work.what, time(wait_age(work))),
            );
            (
                FindingKind::WorkerBusy,
                format!("the others wait for {slot}: it waits for no other, and {doing}"),
                Vec::new(),
                "look at the processor and memory of its machine; a worker that is slower than the others delays them all"
                    .to_owned(),
            )
        }
    };
    // A worker that makes steps comes to the others in the end.
    let makes_steps = slot.role == Role::DenseWorker && member.still.is_some_and(|still| still < SILENT);
    let severity = if makes_steps { Severity::Slow } else { Severity::Trouble };
    Finding { kind, severity, subject: slot.to_string(), what, since_seconds: Some(waited.as_secs_f64()), why, next }
}

fn coordinator(observation: &Observation, waited: Duration) -> Finding {
    let process = observation.newest_process(Party::Coordinator);
    let known = process.and_then(|process| of_process(observation, process));
    let (what, said) = match &observation.coordinator {
        CoordinatorSign::Answers => ("the coordinator answers here, and not to all its members".to_owned(), None),
        CoordinatorSign::Silent(said) => ("the coordinator does not answer".to_owned(), Some(said.clone())),
        CoordinatorSign::Ended => ("the coordinator has ended".to_owned(), None),
    };
    let (evidence, next) = known.unwrap_or_else(|| {
        let alive = process.map(|process| format!("its process {} on this machine lives", process.pid));
        let next = "look at its process and its log; a coordinator with a journal (--journal) goes on where it was when it is \
                    started again on its port; the others wait for `cluster.timeout_seconds`";
        (alive.unwrap_or_default(), next.to_owned())
    });
    let since_seconds = Some(waited.as_secs_f64()).filter(|waited| *waited > 0.0);
    let why = said.into_iter().chain(Some(evidence)).filter(|why| !why.is_empty()).collect();
    let subject = "coordinator".to_owned();
    Finding { since_seconds, why, ..Finding::trouble(FindingKind::CoordinatorSilent, subject, what, next) }
}

fn data(observation: &Observation, slot: MemberSlot, waited: Duration) -> Finding {
    let waits = observation.find_member(slot).into_iter().flat_map(|member| &member.waits);
    let why = waits.filter(|wait| wait.kind() == WaitKind::Data).map(|wait| wait.what.clone()).take(1).collect();
    let what = format!("the data source of {slot} has given no rows for {}", time(waited));
    let next = "look at the disk or store that `data.train` is on: `iostat -x 1`, `ls` in its folder from that machine";
    let trouble = Finding::trouble(FindingKind::DataSource, format!("data source of {slot}"), what, next.to_owned());
    Finding { since_seconds: Some(waited.as_secs_f64()), why, ..trouble }
}

pub(crate) fn disk_cause(observation: &Observation, slot: MemberSlot, waited: Duration) -> Finding {
    let member = observation.find_member(slot);
    let waits = member.into_iter().flat_map(|member| &member.waits);
    let said = waits.filter(|wait| wait.kind() == WaitKind::Disk).map(|wait| wait.what.clone());
    let free =
        member.and_then(|member| member.disk).map(|(free, _)| format!("{} MiB of its disk are free", free >> 20));
    let what = format!("the disk of {slot} has taken nothing for {}", time(waited));
    let next =
        "make room on that disk, or mend it: the process tries again every second, and nothing acknowledged is lost";
    let trouble = Finding::trouble(FindingKind::DiskStopped, slot.to_string(), what, next.to_owned());
    Finding { since_seconds: Some(waited.as_secs_f64()), why: said.chain(free).collect(), ..trouble }
}
