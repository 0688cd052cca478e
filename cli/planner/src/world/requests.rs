//! Requests to the embedding servers: a worker's cores, its link, the servers' links and cores, and the way back.
//!
//! One request stands for those to all servers. Each group of servers gets its part as one message to the machine that stands for it;
//! the last group to answer ends the request. On one machine the bytes pass at the speed of loopback.

use std::rc::Rc;

use zagros_worker_core::{Action, Event};

use super::{SimEvent, SimWork, SimWorld};
use crate::error::PlannerError;
use crate::work::ID_BYTES;
use crate::worker::{SimBatch, WindowPlace, WorkerId};

/// More parts of streamed weights than that change nothing but the time of a simulation.
const MOST_PARTS: usize = 8;

#[derive(Debug)]
pub(super) struct ServerRequest {
    worker: WorkerId,
    kind: RequestKind,
    samples: f64,
    /// Groups of servers that have not answered.
    waits_for: usize,
}

#[derive(Debug)]
enum RequestKind {
    Lookup {
        number: u64,
    },
    /// A part of the streamed weights of a step, and of their gradients.
    Weights {
        attempt: u64,
    },
    /// The place in the window is free once the push is acknowledged.
    Push {
        batch: SimBatch,
        _place: Rc<WindowPlace>,
    },
}

impl SimWorld {
    pub(super) fn start_lookup(&mut self, index: usize, number: u64, samples: u64) {
        self.start_request(index, RequestKind::Lookup { number }, samples);
    }

    pub(super) fn start_push(&mut self, index: usize, batch: SimBatch, place: Rc<WindowPlace>) {
        self.workers[index].unacknowledged += 1;
        let samples = batch.samples;
        self.start_request(index, RequestKind::Push { batch, _place: place }, samples);
    }

    /// Layers come and their gradients go while the step computes. It ends when the last is there.
    pub(super) fn start_weights(&mut self, index: usize) {
        let attempt = self.workers[index].attempts;
        let samples = self.scenario.work.batch.round() as u64;
        for _ in 0..self.weight_parts() {
            self.start_request(index, RequestKind::Weights { attempt }, samples);
        }
    }

    /// Parts of the streamed weights, which follow each other from stage to stage: one for each layer, and not too many. 0 if weights are
    /// resident.
    pub(super) fn weight_parts(&self) -> usize {
        let work = &self.scenario.work;
        if work.traffic.is_streamed { work.dense.products.len().clamp(1, MOST_PARTS) } else { 0 }
    }

    fn start_request(&mut self, index: usize, kind: RequestKind, samples: u64) {
        let waits_for = self.cluster.tiers.len();
        let request = ServerRequest { worker: self.workers[index].id, kind, samples: samples as f64, waits_for };
        let seconds = self.worker_seconds(&request);
        let number = self.free_requests.pop().unwrap_or(self.requests.len());
        if number == self.requests.len() {
            self.requests.push(None);
        }
        self.requests[number] = Some(request);
        let machine = self.cluster.worker_machines[index];
        // Half before the request and half after its answer; in one process there is neither.
        match waits_for {
            0 => self.compute(machine, seconds, 1.0, SimWork::Receive(number)),
            _ => self.compute(machine, seconds / 2.0, 1.0, SimWork::Send(number)),
        }
    }

    /// The worker's part before the request is done: the message to each group of servers leaves.
    pub(super) fn send(&mut self, number: usize) {
        let Some(request) = &self.requests[number] else { return };
        let (up, index) = (self.bytes(request).0, request.worker.index);
        let (machine, half_trip) =
            (self.cluster.worker_machines[index], self.cluster.worker_times(index).round_trip / 2.0);
        let now = self.queue.now();
        let sent = if self.is_one_machine() { now } else { self.cluster.machines[machine].up.send(now, up) };
        for tier in 0..self.cluster.tiers.len() {
            self.queue.push(sent + half_trip, SimEvent::Message(SimWork::Arrive(number, tier)));
        }
    }

    /// The first byte is at the servers.
    pub(super) fn arrive(&mut self, number: usize, tier: usize) {
        let now = self.queue.now();
        if now < self.servers_back {
            return self.queue.push(self.servers_back, SimEvent::Message(SimWork::Arrive(number, tier)));
        }
        let Some(request) = &self.requests[number] else { return };
        let (part, bytes) = (self.cluster.tiers[tier], self.server_bytes(request).0);
        let came = match self.is_one_machine() {
            true => now + bytes / self.loopback(),
            false => self.cluster.machines[part.machine].down.send(now, bytes * part.share),
        };
        self.queue.push(came, SimEvent::Message(SimWork::Serve(number, tier)));
    }

    /// The last byte is at the servers.
    pub(super) fn serve(&mut self, number: usize, tier: usize) {
        let Some(request) = &self.requests[number] else { return };
        let part = self.cluster.tiers[tier];
        let of_sample = match request.kind {
            RequestKind::Lookup { .. } => part.lookup,
            RequestKind::Push { .. } => part.push,
            RequestKind::Weights { .. } => part.stream / self.weight_parts() as f64,
        };
        let seconds = request.samples * part.share * of_sample;
        self.compute(part.machine, seconds / part.threads, part.threads, SimWork::Served(number, tier));
    }

    /// The servers have their answer.
    pub(super) fn served(&mut self, number: usize, tier: usize) {
        let Some(request) = &self.requests[number] else { return };
        let (part, bytes) = (self.cluster.tiers[tier], self.server_bytes(request).1);
        let half_trip = self.cluster.worker_times(request.worker.index).round_trip / 2.0;
        let now = self.queue.now();
        let sent = match self.is_one_machine() {
            true => now + bytes / self.loopback(),
            false => self.cluster.machines[part.machine].up.send(now, bytes * part.share),
        };
        self.queue.push(sent + half_trip, SimEvent::Message(SimWork::Answer(number, tier)));
    }

    /// The first byte of an answer is at the worker.
    pub(super) fn answer(&mut self, number: usize, tier: usize) {
        let Some(request) = &self.requests[number] else { return };
        let (part, bytes, index) = (self.cluster.tiers[tier], self.bytes(request).1, request.worker.index);
        let machine = self.cluster.worker_machines[index];
        let now = self.queue.now();
        let came = match self.is_one_machine() {
            true => now,
            false => self.cluster.machines[machine].down.send(now, bytes * part.group_share),
        };
        self.queue.push(came, SimEvent::Message(SimWork::Collect(number)));
    }

    /// The last byte of an answer is at the worker.
    pub(super) fn collect(&mut self, number: usize) {
        let Some(request) = &mut self.requests[number] else { return };
        request.waits_for -= 1;
        if request.waits_for > 0 {
            return;
        }
        let index = request.worker.index;
        let Some(request) = &self.requests[number] else { return };
        let seconds = self.worker_seconds(request);
        self.compute(self.cluster.worker_machines[index], seconds / 2.0, 1.0, SimWork::Receive(number));
    }

    fn is_one_machine(&self) -> bool {
        self.cluster.machines.len() == 1
    }

    fn worker_seconds(&self, request: &ServerRequest) -> f64 {
        let times = self.cluster.worker_times(request.worker.index);
        let of_sample = match request.kind {
            RequestKind::Lookup { .. } => times.lookup,
            RequestKind::Push { .. } => times.push,
            RequestKind::Weights { .. } => times.stream / self.weight_parts() as f64,
        };
        request.samples * of_sample
    }

    /// Bytes out of a worker and into it.
    fn bytes(&self, request: &ServerRequest) -> (f64, f64) {
        let work = &self.scenario.work;
        let ids = work.distinct_rows() * ID_BYTES;
        let [pulled, pushed] = self.weight_bytes();
        let (up, down) = match request.kind {
            RequestKind::Lookup { .. } => (ids, work.bytes_down - pulled / work.batch),
            RequestKind::Push { .. } => (work.bytes_up - ids - pushed / work.batch, 0.0),
            // A worker's own part comes from the servers, and the others' from them. Those on its machine use no link.
            RequestKind::Weights { .. } => {
                let (own, others) = (1.0 / self.workers.len() as f64, self.share_elsewhere(request.worker.index));
                let parts = self.weight_parts() as f64;
                let (up, down) = (own * pushed + others * (pushed + pulled), own * pulled + others * (pulled + pushed));
                return (up / parts, down / parts);
            }
        };
        (up * request.samples, down * request.samples)
    }

    /// The share of all workers that are on other machines than this one.
    fn share_elsewhere(&self, index: usize) -> f64 {
        let machines = &self.cluster.worker_machines;
        let neighbours = machines.iter().filter(|machine| **machine == machines[index]).count();
        1.0 - neighbours as f64 / machines.len() as f64
    }

    fn server_bytes(&self, request: &ServerRequest) -> (f64, f64) {
        let [pulled, pushed] = self.weight_bytes();
        let each = (self.workers.len() * self.weight_parts().max(1)) as f64;
        match request.kind {
            RequestKind::Weights { .. } => (pushed / each, pulled / each),
            RequestKind::Lookup { .. } | RequestKind::Push { .. } => self.bytes(request),
        }
    }

    /// Bytes of streamed weights and of their gradients in a step.
    fn weight_bytes(&self) -> [f64; 2] {
        let traffic = &self.scenario.work.traffic;
        if traffic.is_streamed { [traffic.pulled, traffic.pushed] } else { [0.0; 2] }
    }

    fn loopback(&self) -> f64 {
        self.scenario.calibration.wire.bytes_per_second
    }

    /// The rows are there, or the gradients are acknowledged.
    pub(super) fn end_request(&mut self, number: usize) -> Result<(), PlannerError> {
        let Some(request) = self.requests[number].take() else { return Ok(()) };
        self.free_requests.push(number);
        if !self.is_current(request.worker) {
            return Ok(());
        }
        let index = request.worker.index;
        match request.kind {
            RequestKind::Lookup { number } => self.looked_up(request.worker, number),
            RequestKind::Weights { attempt } => self.end_step_part(request.worker, attempt)?,
            RequestKind::Push { batch, _place: place } => {
                drop(place);
                self.workers[index].unacknowledged -= 1;
                let complete = self.workers[index].acknowledge(&batch);
                self.complete_splits(index, complete)?;
                self.acknowledged(index);
            }
        }
        self.go_ahead(index)
    }

    /// Samples of a worker whose step was made, and whose gradients are not acknowledged.
    pub(super) fn samples_being_pushed(&self, id: WorkerId) -> u64 {
        let samples = |request: &ServerRequest| match &request.kind {
            RequestKind::Push { batch, .. } if request.worker == id => batch.samples,
            _ => 0,
        };
        self.requests.iter().flatten().map(samples).sum()
    }

    fn acknowledged(&mut self, index: usize) {
        let worker = &mut self.workers[index];
        if worker.drains && worker.unacknowledged == 0 {
            worker.drains = false;
            let event = if worker.action == Action::LeaveGroup { Event::Left } else { Event::Drained };
            self.reply(index, event);
        }
        self.end_turn(index);
    }
}
