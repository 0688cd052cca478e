//! The sequence window of each writer records which of its last pushes were applied. A retry of an applied push is a
//! duplicate: the server acknowledges it and does not apply it again (invariant DP-3).
//!
//! A writer has one window for each window group that its pushes have changed rows of ([`WindowGroups`]).

use std::collections::HashSet;

use dashmap::DashMap;
use dashmap::mapref::one::RefMut;
use zagros_protocol::{PUSH_WINDOW as WINDOW, Refusal, RefusalKind, counts_batches};
use zagros_rows::log::{WindowGroup, WindowImage};
use zagros_table::PushOrigin;

use super::step_pushes::StepPushes;
use super::window_groups::WindowGroups;

/// The sequence windows of all writers. No lock is held while a push is applied.
#[derive(Debug, Default)]
pub(crate) struct SequenceWindows {
    /// By window group and writer.
    windows: DashMap<(u32, u64), SequenceWindow>,
    pub(crate) groups: WindowGroups,
    pub(crate) steps: StepPushes,
}

/// What to do with a push.
#[derive(Debug)]
pub(crate) enum PushClaim<'a> {
    /// Apply it to the rows of the ticket's groups, then call [`PushTicket::mark_applied`].
    First(PushTicket<'a>),
    /// Nothing. It was applied before to every group.
    Duplicate,
}

/// The exclusive right to apply a push. If a ticket is dropped unused, the push may be tried again.
#[derive(Debug)]
pub(crate) struct PushTicket<'a> {
    windows: &'a SequenceWindows,
    push: PushOrigin,
    /// Window groups to whose rows the push was not applied before.
    groups: Vec<u32>,
    applied: bool,
}

impl SequenceWindows {
    /// Claims a push to rows of these window groups. Each group decides for itself whether it has the push.
    /// Refused as `Fenced` if the writer has been replaced (invariant MB-1), as `Unavailable` while another try of the same
    /// push is being applied, and as `Invalid` if the push is older than a window, which then cannot tell whether it was
    /// applied. No group is claimed then.
    pub(crate) fn claim_push(&self, push: PushOrigin, groups: &[u32]) -> Result<PushClaim<'_>, Refusal> {
        // From here on, dropping the ticket gives back what it has claimed.
        let mut ticket = PushTicket { windows: self, push, groups: Vec::with_capacity(groups.len()), applied: false };
        for group in groups {
            // The window is unlocked again before the ticket may be dropped.
            let is_new = self.window(*group, push).claim(push);
            if is_new? {
                ticket.groups.push(*group);
            }
        }
        Ok(if ticket.groups.is_empty() { PushClaim::Duplicate } else { PushClaim::First(ticket) })
    }

    fn window(&self, group: u32, push: PushOrigin) -> RefMut<'_, (u32, u64), SequenceWindow> {
        self.windows.entry((group, push.writer)).or_insert_with(|| SequenceWindow::new(push.incarnation))
    }

    /// No push is under way, here and in [`Self::images_of`].
    pub(crate) fn group_images(&self) -> Vec<WindowGroup> {
        let group = |(group, buckets)| WindowGroup { group, buckets, windows: self.images_of(group) };
        self.groups.buckets_by_group().into_iter().map(group).collect()
    }

    pub(crate) fn images_of(&self, group: u32) -> Vec<WindowImage> {
        let of_group = self.windows.iter().filter(|window| window.key().0 == group);
        of_group.filter_map(|window| window.to_image(window.key().1)).collect()
    }

    /// Puts a group of an earlier process, or of another server, in.
    pub(crate) fn restore_group(&self, image: &WindowGroup) {
        self.groups.assign_group(&image.buckets, image.group);
        for WindowImage { writer, incarnation, applied } in &image.windows {
            for seq in applied.iter().flat_map(|[first, last]| *first..=*last) {
                self.restore_applied(image.group, PushOrigin { writer: *writer, incarnation: *incarnation, seq });
            }
        }
    }

    /// Notes a push that an earlier process applied to a group.
    pub(crate) fn restore_applied(&self, group: u32, push: PushOrigin) {
        let mut window = self.window(group, push);
        if push.incarnation > window.incarnation {
            *window = SequenceWindow::new(push.incarnation);
        }
        if push.incarnation == window.incarnation && window.advance(push.seq).is_ok() {
            window.applied.set(push.seq, true);
        }
    }

    /// The highest number of any push that counts batches. 0 without one.
    pub(crate) fn newest_batch(&self) -> u64 {
        let of_batches = self.windows.iter().filter(|window| counts_batches(window.key().1));
        of_batches.filter_map(|window| window.newest).max().unwrap_or(0)
    }

    /// Forgets the windows of groups without a bucket of this server.
    pub(crate) fn keep_groups_of(&self, is_owned: impl Fn(u32) -> bool, buckets: u32) {
        let kept: HashSet<u32> =
            (0..buckets).filter(|bucket| is_owned(*bucket)).map(|bucket| self.groups.of_bucket(bucket)).collect();
        self.windows.retain(|(group, _), _| kept.contains(group));
    }

    pub(crate) fn clear(&self) {
        self.windows.clear();
        self.groups.clear();
        self.steps.clear();
    }
}

impl PushTicket<'_> {
    pub(crate) fn mark_applied(mut self) {
        self.applied = true;
    }

    pub(crate) fn groups(&self) -> &[u32] {
        &self.groups
    }
}

impl Drop for PushTicket<'_> {
    fn drop(&mut self) {
        for group in &self.groups {
            if let Some(mut window) = self.windows.windows.get_mut(&(*group, self.push.writer)) {
                window.finish(self.push.incarnation, self.push.seq, self.applied);
            }
        }
    }
}

/// The last pushes of one writer, by sequence number modulo the window's length.
#[derive(Debug)]
struct SequenceWindow {
    incarnation: u32,
    /// The highest number seen. `None` before the first push.
    newest: Option<u64>,
    claimed: SequenceBits,
    applied: SequenceBits,
}

impl SequenceWindow {
    fn new(incarnation: u32) -> Self {
        Self { incarnation, newest: None, claimed: SequenceBits::default(), applied: SequenceBits::default() }
    }

    /// The window as a value. `None` if nothing was applied.
    fn to_image(&self, writer: u64) -> Option<WindowImage> {
        let newest = self.newest?;
        let mut applied: Vec<[u64; 2]> = Vec::new();
        for seq in (newest.saturating_sub(WINDOW - 1)..=newest).filter(|seq| self.applied.get(*seq)) {
            match applied.last_mut() {
                Some(range) if range[1] + 1 == seq => range[1] = seq,
                _ => applied.push([seq, seq]),
            }
        }
        (!applied.is_empty()).then_some(WindowImage { writer, incarnation: self.incarnation, applied })
    }

    /// Claims a push. Answers whether it is new: otherwise it was applied before.
    fn claim(&mut self, push: PushOrigin) -> Result<bool, Refusal> {
        let PushOrigin { writer, incarnation, seq } = push;
        let this = || format!("push {seq} of writer {writer} (incarnation {incarnation})");
        if incarnation < self.incarnation {
            let newer = format!("a newer process of this writer pushes with incarnation {}", self.incarnation);
            return Err(Refusal::new(RefusalKind::Fenced, format!("{} is fenced: {newer}", this())));
        }
        if incarnation > self.incarnation {
            *self = Self::new(incarnation);
        }
        self.advance(seq).map_err(|newest| {
            Refusal::invalid(format!(
                "{} is not applied: it is older than the last {WINDOW} pushes, up to {newest}, \
                 and this server no longer knows whether it was applied before",
                this()
            ))
        })?;
        if self.applied.get(seq) {
            return Ok(false);
        }
        if self.claimed.get(seq) {
            let message = format!("{} is being applied by an earlier try; try again", this());
            return Err(Refusal::new(RefusalKind::Unavailable, message));
        }
        self.claimed.set(seq, true);
        Ok(true)
    }

    /// Ends a push that [`Self::claim`] found new. Pushes of an older incarnation, and pushes older than the window,
    /// are not recorded. Their retries are refused.
    fn finish(&mut self, incarnation: u32, seq: u64, applied: bool) {
        let remembered = self.newest.is_some_and(|newest| seq <= newest && newest - seq < WINDOW);
        if incarnation == self.incarnation && remembered {
            self.claimed.set(seq, false);
            self.applied.set(seq, applied);
        }
    }

    /// Moves the window up to `seq`. Numbers that fall out of the window are forgotten. If `seq` has fallen out, the error is the
    /// newest number.
    fn advance(&mut self, seq: u64) -> Result<(), u64> {
        let newest = *self.newest.get_or_insert(seq);
        if seq <= newest {
            return if newest - seq < WINDOW { Ok(()) } else { Err(newest) };
        }
        // Skipped numbers replace the oldest ones, as not applied.
        let fresh = (seq - newest).min(WINDOW);
        for skipped in 0..fresh {
            self.claimed.set(seq - skipped, false);
            self.applied.set(seq - skipped, false);
        }
        self.newest = Some(seq);
        Ok(())
    }
}

/// One bit per push in the window.
#[derive(Debug)]
struct SequenceBits([u64; (WINDOW / 64) as usize]);

impl Default for SequenceBits {
    fn default() -> Self {
        Self([0; (WINDOW / 64) as usize])
    }
}

impl SequenceBits {
    fn get(&self, seq: u64) -> bool {
        let (word, bit) = Self::bit_place(seq);
        self.0[word] & bit != 0
    }

    fn set(&mut self, seq: u64, value: bool) {
        let (word, bit) = Self::bit_place(seq);
        if value {
            self.0[word] |= bit;
        } else {
            self.0[word] &= !bit;
        }
    }

    fn bit_place(seq: u64) -> (usize, u64) {
        let position = seq % WINDOW;
        ((position / 64) as usize, 1 << (position % 64))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;
    use std::sync::atomic::{AtomicU64, Ordering};
    use std::thread;

    use proptest::prelude::*;

    use super::*;

    fn push(seq: u64) -> PushOrigin {
        PushOrigin { writer: 3, incarnation: 1, seq }
    }

    /// Applies a push. Returns whether this was the first time.
    fn apply(windows: &SequenceWindows, push: PushOrigin) -> Result<bool, RefusalKind> {
        match windows.claim_push(push, &[0]).map_err(|refusal| refusal.kind)? {
            PushClaim::First(ticket) => {
                ticket.mark_applied();
                Ok(true)
            }
            PushClaim::Duplicate => Ok(false),
        }
    }

    proptest! {
        /// Compares with a set that forgets nothing. A push is new exactly once. A push that fell out of the window is
        /// refused.
        #[test]
        fn each_push_is_new_once(steps in prop::collection::vec((0_u64..6 * WINDOW, any::<bool>()), 1..400)) {
            let windows = SequenceWindows::default();
            let mut applied = HashSet::new();
            let mut newest = 0;
            for (index, (seq, succeeds)) in steps.into_iter().enumerate() {
                let too_old = index > 0 && seq + WINDOW <= newest;
                newest = newest.max(seq);
                match windows.claim_push(push(seq), &[0]) {
                    Err(refusal) => prop_assert!(too_old && refusal.kind == RefusalKind::Invalid, "{}", refusal),
                    Ok(PushClaim::Duplicate) => prop_assert!(!too_old && applied.contains(&seq)),
                    Ok(PushClaim::First(ticket)) => {
                        prop_assert!(!too_old && !applied.contains(&seq));
                        if succeeds {
                            ticket.mark_applied();
                            applied.insert(seq);
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn a_push_that_failed_may_be_tried_again() {
        let windows = SequenceWindows::default();
        let PushClaim::First(ticket) = windows.claim_push(push(5), &[0]).unwrap() else { panic!("it is the first") };
        let racing = windows.claim_push(push(5), &[0]).unwrap_err();
        assert_eq!(racing.kind, RefusalKind::Unavailable, "{racing}");
        drop(ticket);
        assert_eq!(apply(&windows, push(5)), Ok(true));
        assert_eq!(apply(&windows, push(5)), Ok(false));
    }

    /// Invariant MB-1.
    #[test]
    fn an_older_incarnation_is_fenced_and_a_newer_one_starts_afresh() {
        let windows = SequenceWindows::default();
        assert_eq!(apply(&windows, push(5)), Ok(true));
        let PushClaim::First(late) = windows.claim_push(push(6), &[0]).unwrap() else { panic!("it is the first") };
        assert_eq!(apply(&windows, PushOrigin { incarnation: 2, ..push(5) }), Ok(true));
        assert_eq!(apply(&windows, push(7)), Err(RefusalKind::Fenced));
        // The push of the old incarnation leaves no trace in the window of the new one.
        late.mark_applied();
        assert_eq!(apply(&windows, PushOrigin { incarnation: 2, ..push(6) }), Ok(true));
    }

    /// Uses the largest staleness that a job allows. All batches but the oldest are acknowledged, and one more is
    /// claimed.
    #[test]
    fn the_oldest_push_of_the_largest_staleness_may_be_tried_again() {
        let job = |staleness: u64| {
            let text = format!("[data]\nformat = 'criteo'\ntrain = 'a'\n[train]\nstaleness = {staleness}\n");
            zagros_job::Job::parse(&text, "job.toml".as_ref(), &zagros_job::Overrides::none())
        };
        let most = (1..=WINDOW).rev().find(|staleness| job(*staleness).is_ok()).expect("some staleness is allowed");
        println!("the largest staleness is {most}");
        let windows = SequenceWindows::default();
        let PushClaim::First(oldest) = windows.claim_push(push(0), &[0]).unwrap() else { panic!("it is the first") };
        (1..=most).for_each(|seq| assert_eq!(apply(&windows, push(seq)), Ok(true)));
        // The acknowledgement of the oldest push was lost, or the push failed.
        drop(oldest);
        assert_eq!([apply(&windows, push(0)), apply(&windows, push(0))], [Ok(true), Ok(false)]);
    }

    #[test]
    fn the_largest_number_does_not_overflow() {
        let windows = SequenceWindows::default();
        assert_eq!(apply(&windows, push(0)), Ok(true));
        assert_eq!(apply(&windows, push(u64::MAX)), Ok(true));
        assert_eq!(apply(&windows, push(u64::MAX)), Ok(false));
        assert_eq!(apply(&windows, push(0)), Err(RefusalKind::Invalid));
    }

    /// Invariant DP-3 with concurrent retries. Eight threads push the same numbers until each is acknowledged. Every
    /// third try fails before its acknowledgement.
    #[test]
    fn racing_retries_apply_a_push_once() {
        // Fewer pushes than the window, so no thread can fall out of it.
        const PUSHES: u64 = WINDOW - 1;
        let windows = SequenceWindows::default();
        let applied: Vec<AtomicU64> = (0..PUSHES).map(|_| AtomicU64::new(0)).collect();
        let tries = AtomicU64::new(0);
        let until_acknowledged = |seq: u64| loop {
            match windows.claim_push(push(seq), &[0]) {
                Ok(PushClaim::Duplicate) => return,
                Ok(PushClaim::First(ticket)) if !tries.fetch_add(1, Ordering::Relaxed).is_multiple_of(3) => {
                    applied[seq as usize].fetch_add(1, Ordering::Relaxed);
                    return ticket.mark_applied();
                }
                Ok(PushClaim::First(failed)) => drop(failed),
                Err(refusal) => assert_eq!(refusal.kind, RefusalKind::Unavailable),
            }
        };
        thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| (0..PUSHES).for_each(until_acknowledged));
            }
        });
        assert!(applied.iter().all(|times| times.load(Ordering::Relaxed) == 1));
    }
}
