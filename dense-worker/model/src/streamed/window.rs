//! The layers of a network that are here at the moment, where the weights of all are elsewhere.
//!
//! A step uses layers one after another: forward from the first, and backward from the last. The window holds the layer in use
//! and fetches the one that is used next, so the fetch goes on while the step computes. It learns the order of the uses from one
//! sample before the first step.
//!
//! ```text
//! use       0 layer a   1 layer b   2 layer c = 3 layer c   4 layer b   5 layer a
//! weights   ── fetch ──► computes with it ──► gone
//!                fetch of the next ──────────► computes with it
//! gradient                                     given ─► (sum of all threads) ─► pushed
//! ```
//!
//! All threads of a step use the same layers in the same order. A layer goes once the last of them is done with it.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use zagros_job::{Job, StreamedLayer};
use zagros_network::TraversalPurpose;
use zagros_zip::ZipEq;

use super::layer_values::{LayerValues, SpareMemory};
use crate::{ModelError, ModelResult};

pub trait LayerStore: Send + Sync + Debug {
    /// Begins to fetch the weights of a layer, those after every gradient that was pushed before. They are written to `into`, in
    /// the order of the layer's tensors. Of several workers all fetch the same layers in the same order in training.
    fn pull(&self, layer: usize, purpose: TraversalPurpose, into: LayerValues) -> Box<dyn PendingLayer>;

    /// Begins to push the gradient of a layer at a step, summed over all workers. They push in the same order, too.
    ///
    /// # Errors
    /// When a value is not finite. Of several workers, [`Self::summed`] says so.
    fn push(&self, layer: usize, step: u64, gradient: LayerValues) -> ModelResult;

    /// Waits until the gradients of a step are summed over all workers. Returns the sum of the squares of those that this worker
    /// pushed, if they wait for a commit.
    ///
    /// # Errors
    /// When a worker does not take part. When a sum is not finite: nothing of that sum is pushed.
    fn summed(&self) -> ModelResult<f64>;

    /// Begins to apply the gradients of a step, times the factor, where they wait for it.
    ///
    /// # Errors
    /// When there are no servers to do so.
    fn commit(&self, step: u64, factor: f32) -> ModelResult;

    /// Waits until every push has arrived.
    fn wait_for_pushes(&self) -> ModelResult;
}

pub trait PendingLayer: Send + Debug {
    /// Waits for them, at most until the store's timeout.
    ///
    /// # Errors
    /// When they do not come: the error names layer and server.
    fn wait(self: Box<Self>) -> ModelResult<LayerValues>;
}

/// What is done with the sum of a layer's gradients before it is pushed.
#[derive(Clone, Copy, Debug)]
pub struct GradientLimit {
    /// Largest magnitude of a gradient (`train.clip_value`).
    largest: Option<f32>,
}

impl GradientLimit {
    pub fn new(job: &Job) -> Self {
        Self { largest: job.train.updates.clip_value.map(|largest| largest as f32) }
    }

    /// Clips gradients. Returns whether all were finite.
    pub fn clip_gradients(&self, gradients: &mut [f32]) -> bool {
        let are_finite = crate::all_finite(gradients);
        if let (Some(largest), true) = (self.largest, are_finite) {
            gradients.iter_mut().for_each(|gradient| *gradient = gradient.clamp(-largest, largest));
        }
        are_finite
    }
}

/// The layers that are here, for the threads of a step.
#[derive(Debug)]
pub struct LayerWindow {
    pub(crate) store: Arc<dyn LayerStore>,
    layers: Vec<StreamedLayer>,
    /// To keep fewer outputs, it computes some twice.
    pub(crate) recomputes: bool,
    spare: SpareMemory,
    state: Mutex<WindowState>,
    changed: Condvar,
}

/// The number of a use of a layer within a step.
pub type UseNumber = usize;

#[derive(Debug)]
struct WindowState {
    traversal: UseCounts,
    /// The layers in the order of their uses: of a training step, and of scoring.
    orders: [Vec<usize>; 2],
    /// Whether the order is noted, and nothing is fetched or pushed.
    is_learning: bool,
    /// By use: what is here or on its way.
    held: BTreeMap<UseNumber, LayerPresence>,
    /// By use: threads that are not done with it. A use that no thread has started is missing.
    users: BTreeMap<UseNumber, usize>,
    /// By layer: the gradients of threads, with the number of the thread.
    gradients: BTreeMap<usize, Vec<(usize, LayerValues)>>,
    /// The others need not wait.
    has_failed: bool,
}

#[derive(Debug)]
struct UseCounts {
    purpose: TraversalPurpose,
    step: u64,
    /// Factor of the gradients in the sum of all workers.
    share: f32,
    /// Uses that each thread has started.
    started: Vec<usize>,
}

#[derive(Debug)]
enum LayerPresence {
    /// No thread waits for it yet.
    Coming(Box<dyn PendingLayer>),
    /// A thread waits for it.
    Awaited,
    Here(Arc<LayerValues>),
}

impl LayerWindow {
    pub fn new(job: &Job, store: Arc<dyn LayerStore>) -> Self {
        let state = WindowState {
            traversal: UseCounts { purpose: TraversalPurpose::Training, step: 0, share: 1.0, started: Vec::new() },
            orders: [Vec::new(), Vec::new()],
            is_learning: false,
            held: BTreeMap::new(),
            users: BTreeMap::new(),
            gradients: BTreeMap::new(),
            has_failed: false,
        };
        let (layers, spare) = (job.worker_layers(), SpareMemory::default());
        let recomputes = job.recomputes_outputs();
        Self { store, layers, recomputes, spare, state: Mutex::new(state), changed: Condvar::new() }
    }

    /// Before a traversal by so many threads. What an earlier one left is gone. A training step's gradients count `share` in the
    /// sum of all workers.
    pub fn start(&self, purpose: TraversalPurpose, (step, share): (u64, f32), threads: usize) {
        let mut state = self.lock();
        state.traversal = UseCounts { purpose, step, share, started: vec![0; threads] };
        state.held.clear();
        state.users.clear();
        state.gradients.clear();
        state.has_failed = false;
        self.fetch(&mut state, 0);
    }

    /// Notes the order of the uses in the traversals that `work` makes on one thread. They get weights that are anything.
    pub fn learn_order<T>(&self, work: impl FnOnce() -> T) -> T {
        self.lock().is_learning = true;
        let done = work();
        self.lock().is_learning = false;
        done
    }

    /// Notes that a thread has failed. The others end when they next ask for a layer.
    pub(crate) fn note_failure(&self) {
        self.lock().has_failed = true;
        self.changed.notify_all();
    }

    /// The weights of a layer, `[weights]`, for the next use of a thread. Waits for them.
    pub fn begin_use(&self, thread: usize, layer: usize) -> ModelResult<(UseNumber, Arc<LayerValues>)> {
        let mut state = self.lock();
        let number = state.traversal.started[thread];
        state.traversal.started[thread] += 1;
        if state.is_learning {
            state.order().push(layer);
            let memory = self.layer_memory(layer);
            state.held.insert(number, LayerPresence::Here(Arc::new(memory)));
        }
        if state.order().get(number) != Some(&layer) {
            return Err(ModelError::Shape { what: "a layer is used in another order than before" });
        }
        self.changed.notify_all();
        let threads = state.traversal.started.len();
        state.users.entry(number).or_insert(threads);
        loop {
            if state.has_failed {
                return Err(ModelError::Thread);
            }
            match state.held.insert(number, LayerPresence::Awaited) {
                Some(LayerPresence::Here(weights)) => {
                    state.held.insert(number, LayerPresence::Here(Arc::clone(&weights)));
                    self.fetch(&mut state, number + 1);
                    return Ok((number, weights));
                }
                Some(LayerPresence::Awaited) => {
                    state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
                }
                Some(LayerPresence::Coming(pending)) => {
                    drop(state);
                    state = self.take(number, pending)?;
                }
                None if state.have_all_come(number) && !state.is_kept(number) => {
                    let coming = self.pull(layer, state.traversal.purpose);
                    state.held.insert(number, LayerPresence::Coming(coming));
                }
                None => {
                    // A thread that is behind leaves this layer, or fetches it, when it is done with an earlier one. Where a network uses
                    // three layers at once, no thread does; then all threads come here.
                    state.held.remove(&number);
                    state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
                }
            }
        }
    }

    fn pull(&self, layer: usize, purpose: TraversalPurpose) -> Box<dyn PendingLayer> {
        self.store.pull(layer, purpose, self.layer_memory(layer))
    }

    /// Memory for the gradients, or the weights, of a layer. It holds anything.
    pub fn layer_memory(&self, layer: usize) -> LayerValues {
        let StreamedLayer { tensors, .. } = &self.layers[layer];
        let first = tensors.first().map_or(0, |tensor| tensor.segment.range.start);
        self.spare.take(first, self.layers[layer].weight_count())
    }

    /// Waits for weights, and puts them in.
    fn take(&self, number: UseNumber, pending: Box<dyn PendingLayer>) -> ModelResult<MutexGuard<'_, WindowState>> {
        let fetched = pending.wait().inspect_err(|_| self.note_failure())?;
        let mut state = self.lock();
        state.held.insert(number, LayerPresence::Here(Arc::new(fetched)));
        self.changed.notify_all();
        Ok(state)
    }

    pub fn end_use(&self, number: UseNumber) -> ModelResult {
        let mut state = self.lock();
        let left = state.users.get_mut(&number).ok_or(ModelError::Thread)?;
        *left -= 1;
        if *left == 0 {
            state.release(number);
            self.fetch(&mut state, number + 2);
            self.changed.notify_all();
        }
        Ok(())
    }

    /// Begins to fetch the layer of a use, if it is known and not here, and if no earlier layer but one is still in use.
    fn fetch(&self, state: &mut WindowState, number: UseNumber) {
        let is_near = state.is_near(number);
        let Some(layer) = state.order().get(number).copied().filter(|_| is_near) else { return };
        if !state.is_kept(number)
            && !state.is_learning
            && !state.held.contains_key(&number)
            && !state.users.contains_key(&number)
        {
            let coming = self.pull(layer, state.traversal.purpose);
            state.held.insert(number, LayerPresence::Coming(coming));
        }
    }

    /// A thread's gradients of a layer. Those of the last thread complete the sum, which is pushed.
    pub fn give_gradients(&self, thread: usize, layer: usize, gradients: LayerValues) -> ModelResult {
        let mut state = self.lock();
        if state.is_learning {
            return Ok(());
        }
        let given = state.gradients.entry(layer).or_default();
        given.push((thread, gradients));
        if given.len() < state.traversal.started.len() {
            return Ok(());
        }
        let mut given = state.gradients.remove(&layer).unwrap_or_default();
        let (step, share) = (state.traversal.step, state.traversal.share);
        drop(state);
        given.sort_by_key(|(thread, _)| *thread);
        let mut given = given.into_iter().map(|(_, gradients)| gradients);
        let Some(mut sum) = given.next() else { return Ok(()) };
        for other in given {
            sum.iter_mut().zip_eq(other.iter()).for_each(|(sum, value)| *sum += value);
        }
        if share != 1.0 {
            sum.iter_mut().for_each(|gradient| *gradient *= share);
        }
        self.store.push(layer, step, sum)
    }

    fn lock(&self) -> MutexGuard<'_, WindowState> {
        // A thread that panicked is reported by the thread that joins it.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl WindowState {
    fn order(&mut self) -> &mut Vec<usize> {
        &mut self.orders[usize::from(self.traversal.purpose == TraversalPurpose::Scoring)]
    }

    /// Whether no earlier layer but one is still in use.
    fn is_near(&self, number: UseNumber) -> bool {
        number < 2 || self.users.get(&(number - 2)) == Some(&0)
    }

    /// Whether all threads want this layer. Then all have given their gradients of earlier layers, so all workers fetch and push in
    /// the same order.
    fn have_all_come(&self, number: UseNumber) -> bool {
        self.traversal.started.iter().all(|started| *started > number)
    }

    /// Whether the use before is of the same layer, and leaves the weights here.
    fn is_kept(&mut self, number: UseNumber) -> bool {
        let order = self.order();
        number > 0 && order.get(number - 1) == order.get(number)
    }

    /// Drops the weights of a use, or keeps them for the next use of the same layer.
    fn release(&mut self, number: UseNumber) {
        let weights = self.held.remove(&number);
        let order = self.order();
        let is_kept = order.get(number + 1).is_some_and(|next| *next == order[number]);
        if let (true, Some(weights)) = (is_kept, weights) {
            self.held.entry(number + 1).or_insert(weights);
        }
    }
}
