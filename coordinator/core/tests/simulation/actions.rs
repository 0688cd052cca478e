//! What may happen in a simulated run.

use proptest::prelude::*;

/// One event. The `usize` picks the slot, modulo the number of slots.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Action {
    /// A process is started at a slot whose process is gone.
    Start(usize),
    /// A process that missed the answer to its join asks again.
    Rejoin(usize),
    /// kill -9.
    Kill(usize),
    /// The process works on, but its heartbeats do not arrive.
    Mute(usize),
    Unmute(usize),
    Ask(usize),
    /// A process ends. The process that replaces it vouches for that.
    Replace(usize),
    /// A worker asks for the newest process group.
    JoinGroup(usize),
    Complete(usize),
    /// A worker votes at the next barrier of its group.
    Vote(usize),
    Transform(usize),
    Evaluate(usize),
    /// A stale process, which was replaced or lost, tries every call.
    CallStale(usize),
    /// Another number of workers is asked for.
    Scale(u32),
    /// A worker that is to leave, and holds no split, leaves.
    Depart(usize),
    /// The coordinator is killed, and comes back so many tenths of a lease later.
    RestartCoordinator(u32),
    /// The coordinator's journal is cut.
    TakeSnapshot,
    /// Nothing happens but time passes.
    Wait,
}

pub(crate) fn actions() -> impl Strategy<Value = Vec<Action>> {
    let slot = 0_usize..16;
    let action = prop_oneof![
        4 => slot.clone().prop_map(Action::Start),
        1 => slot.clone().prop_map(Action::Rejoin),
        1 => slot.clone().prop_map(Action::Kill),
        1 => slot.clone().prop_map(Action::Mute),
        2 => slot.clone().prop_map(Action::Unmute),
        1 => slot.clone().prop_map(Action::Replace),
        2 => slot.clone().prop_map(Action::JoinGroup),
        6 => slot.clone().prop_map(Action::Ask),
        5 => slot.clone().prop_map(Action::Complete),
        2 => slot.clone().prop_map(Action::Vote),
        1 => slot.clone().prop_map(Action::Transform),
        1 => slot.clone().prop_map(Action::Evaluate),
        1 => (0_u32..4).prop_map(Action::Scale),
        3 => slot.clone().prop_map(Action::Depart),
        2 => slot.prop_map(Action::CallStale),
        1 => (0_u32..40).prop_map(Action::RestartCoordinator),
        1 => Just(Action::TakeSnapshot),
        2 => Just(Action::Wait),
    ];
    prop::collection::vec(action, 0..200)
}
