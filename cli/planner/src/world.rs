//! The simulated run: events by time, each of which moves workers, servers and links on.
//!
//! ```text
//!  coordinator (its state machine) ──► splits ──► read ──► window ──► look up ──► step ──► push ──► window
//!                                                 cores    τ + 1      links, cores  cores    links, cores
//!  training loop of each worker (its state machine): an event in, actions out; this world performs the actions
//! ```

mod actions;
mod faults;
mod group;
mod outcome;
mod requests;

use std::collections::VecDeque;

use zagros_coordinator_core::MemberSlot;
use zagros_job::Mode;
use zagros_worker_core::{Event, LoopEnd, TrainingPolicy};

use self::outcome::RunCounts;
use crate::cluster::SimCluster;
use crate::coordination::{SimCoordinator, SimMembership};
use crate::error::PlannerError;
use crate::processor::EventQueue;
use crate::scenario::Scenario;
use crate::worker::{SimWorker, WorkerId, one_epoch};
use group::GroupGathering;
use requests::ServerRequest;

pub use faults::{FailureCost, FailureReport, LostProcess, ProcessLoss, simulate_failures};
pub use outcome::{BusyResource, SimReport, StepReport};

/// What a task on a core is for, and where a message goes.
#[derive(Clone, Copy, Debug)]
enum SimWork {
    Read(WorkerId, u64),
    /// The worker's part of a request before it leaves.
    Send(usize),
    /// The first byte of a request is at a group of servers.
    Arrive(usize, usize),
    /// The last byte is there.
    Serve(usize, usize),
    /// The servers' part is done.
    Served(usize, usize),
    /// The first byte of an answer is at the worker.
    Answer(usize, usize),
    /// The last byte is there.
    Collect(usize),
    /// The worker's part of a request after the last answer.
    Receive(usize),
    Step(WorkerId, u64),
    /// Nothing waits for it.
    Aside,
}

#[derive(Clone, Copy, Debug)]
enum SimEvent {
    /// A task on a machine ends, unless its revision is over.
    TaskEnds {
        machine: usize,
        revision: u64,
    },
    Message(SimWork),
    /// A call of the group is over, unless the group is.
    GroupCall {
        era: u64,
    },
    /// The next rank pushes.
    NextTurn {
        era: u64,
    },
    AskAgain(WorkerId),
    /// All members renew their leases.
    Heartbeat,
    Loss(usize),
    /// Another process comes in the place of a lost one.
    Return(usize),
}

#[derive(Debug)]
struct SimWorld {
    scenario: Scenario,
    policy: TrainingPolicy,
    queue: EventQueue<SimEvent>,
    cluster: SimCluster<SimWork>,
    coordination: SimCoordinator,
    workers: Vec<SimWorker>,
    servers: Vec<SimMembership>,
    /// Replies to actions that took no time.
    replies: VecDeque<(WorkerId, Event)>,
    requests: Vec<Option<ServerRequest>>,
    free_requests: Vec<usize>,
    gathering: GroupGathering,
    faults: Vec<ProcessLoss>,
    /// Rows of a lost server are not there before.
    servers_back: f64,
    lost_server: Option<usize>,
    progress: RunCounts,
}

pub fn simulate(scenario: &Scenario) -> Result<SimReport, PlannerError> {
    simulate_with(scenario, &[])
}

/// Simulates a run in which these processes are lost.
pub fn simulate_with(scenario: &Scenario, faults: &[ProcessLoss]) -> Result<SimReport, PlannerError> {
    if !faults.is_empty() && scenario.mode_name() != "hybrid" {
        return Err(PlannerError::NoFailures { mode: scenario.mode_name() });
    }
    let mut world = SimWorld::new(scenario, faults)?;
    world.run()?;
    Ok(world.report_run())
}

impl SimWorld {
    fn new(scenario: &Scenario, faults: &[ProcessLoss]) -> Result<Self, PlannerError> {
        let (workers, batch) = (scenario.worker_count(), scenario.work.batch.round() as u64);
        let samples = scenario.settings.steps * batch * workers as u64;
        let mut world = Self {
            policy: policy(scenario.work.mode, workers > 1),
            queue: EventQueue::new(),
            cluster: SimCluster::new(scenario),
            coordination: SimCoordinator::new(scenario, samples, !faults.is_empty()),
            workers: Vec::new(),
            servers: Vec::new(),
            replies: VecDeque::new(),
            requests: Vec::new(),
            free_requests: Vec::new(),
            gathering: GroupGathering::default(),
            faults: faults.to_vec(),
            servers_back: 0.0,
            lost_server: None,
            progress: RunCounts::new(samples),
            scenario: scenario.clone(),
        };
        for server in 0..scenario.server_count().max(1) as u32 {
            let joined = world.coordination.join(0.0, MemberSlot::server(server), false);
            let joined = world.admitted(joined)?;
            world.servers.push(joined);
        }
        for index in 0..workers {
            let worker = world.start_worker(WorkerId { index, life: 0 })?;
            world.workers.push(worker);
        }
        for index in 0..workers {
            let first = world.workers[index].training.start();
            world.perform_all(index, &first)?;
        }
        world.schedule_faults();
        Ok(world)
    }

    fn run(&mut self) -> Result<(), PlannerError> {
        self.deliver_replies()?;
        while self.workers.iter().any(|worker| !worker.has_ended) {
            let Some(happening) = self.queue.pop() else {
                return Err(self.stuck("no event is left"));
            };
            self.progress.events += 1;
            self.happen(happening)?;
            self.deliver_replies()?;
        }
        let now = self.queue.now();
        self.progress.end = now;
        if self.coordination.is_epoch_complete(now) { Ok(()) } else { Err(self.stuck("splits are left")) }
    }

    /// Reports replies until no worker has one.
    fn deliver_replies(&mut self) -> Result<(), PlannerError> {
        while let Some((id, event)) = self.replies.pop_front() {
            if self.is_current(id) {
                self.report_event(id.index, event)?;
            }
        }
        Ok(())
    }

    fn happen(&mut self, happening: SimEvent) -> Result<(), PlannerError> {
        match happening {
            SimEvent::TaskEnds { machine, revision } => self.end_tasks(machine, revision),
            SimEvent::Message(work) => self.go_on(work),
            SimEvent::GroupCall { era } => self.end_group_call(era),
            SimEvent::NextTurn { era } => self.next_turn(era),
            SimEvent::AskAgain(id) if self.is_current(id) => self.ask_again(id.index),
            SimEvent::AskAgain(_) => Ok(()),
            SimEvent::Heartbeat => self.beat(),
            SimEvent::Loss(fault) => self.lose(fault),
            SimEvent::Return(fault) => self.come_back(fault),
        }
    }

    fn end_tasks(&mut self, machine: usize, revision: u64) -> Result<(), PlannerError> {
        if !self.cluster.machines[machine].processor.is_at(revision) {
            return Ok(());
        }
        let ended = self.cluster.machines[machine].processor.take_ended(self.queue.now());
        self.schedule(machine);
        ended.into_iter().try_for_each(|work| self.go_on(work))
    }

    fn compute(&mut self, machine: usize, seconds: f64, threads: f64, work: SimWork) {
        self.cluster.machines[machine].processor.start(self.queue.now(), seconds, threads, work);
        self.schedule(machine);
    }

    fn schedule(&mut self, machine: usize) {
        if let Some((at, revision)) = self.cluster.machines[machine].processor.next_end() {
            self.queue.push(at, SimEvent::TaskEnds { machine, revision });
        }
    }

    /// What follows from a task that has ended, or a message that has come.
    fn go_on(&mut self, work: SimWork) -> Result<(), PlannerError> {
        match work {
            SimWork::Read(id, batch) => return self.end_read(id, batch),
            SimWork::Send(request) => self.send(request),
            SimWork::Arrive(request, tier) => self.arrive(request, tier),
            SimWork::Serve(request, tier) => self.serve(request, tier),
            SimWork::Served(request, tier) => self.served(request, tier),
            SimWork::Answer(request, tier) => self.answer(request, tier),
            SimWork::Collect(request) => self.collect(request),
            SimWork::Receive(request) => return self.end_request(request),
            SimWork::Step(id, attempt) => return self.end_step_part(id, attempt),
            SimWork::Aside => {}
        }
        Ok(())
    }

    fn is_current(&self, id: WorkerId) -> bool {
        let worker = &self.workers[id.index];
        worker.is_alive && worker.id == id
    }

    fn reply(&mut self, index: usize, event: Event) {
        self.replies.push_back((self.workers[index].id, event));
    }

    fn start_worker(&mut self, id: WorkerId) -> Result<SimWorker, PlannerError> {
        let config = one_epoch(self.policy, id.life > 0);
        let joined = self.coordination.join(self.queue.now(), MemberSlot::worker(id.index as u32), false);
        let Scenario { work, settings, .. } = &self.scenario;
        Ok(SimWorker::new(id, self.admitted(joined)?, config, work.staleness as usize, settings))
    }

    /// An answer of the coordinator, which refuses nothing here.
    fn admitted<T>(&self, answer: Result<T, zagros_protocol::Refusal>) -> Result<T, PlannerError> {
        answer.map_err(|refusal| self.stuck(&format!("the coordinator refuses a call: {refusal}")))
    }

    fn stuck(&self, why: &str) -> PlannerError {
        let steps = self.workers.first().map_or(0, |worker| worker.steps);
        let states: Vec<String> = self
            .workers
            .iter()
            .filter(|worker| !worker.has_ended)
            .take(3)
            .map(|worker| format!("worker {} is {:?} at {:?}", worker.id.index, worker.training.state(), worker.action))
            .collect();
        PlannerError::Stuck { seconds: self.queue.now(), steps, why: format!("{why}; {}", states.join("; ")) }
    }

    fn end(&mut self, index: usize, ending: LoopEnd) -> Result<(), PlannerError> {
        self.workers[index].has_ended = true;
        if ending == LoopEnd::Finished { Ok(()) } else { Err(self.stuck(&format!("worker {index} ends: {ending:?}"))) }
    }
}

/// How a worker of a job trains beside others.
fn policy(mode: Mode, several: bool) -> TrainingPolicy {
    match (mode, several) {
        (mode, false) => TrainingPolicy::OneWorker { in_turns: mode == Mode::Sync },
        (mode @ (Mode::Sync | Mode::Hybrid), true) => TrainingPolicy::SynchronousGroup { in_turns: mode == Mode::Sync },
        (Mode::Async, true) => TrainingPolicy::AsynchronousWorkers,
    }
}
