//! The core with its clock and its journal: an input is in the journal before it takes effect (invariant MB-5).

use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use tokio::time::{Duration, Instant};
use tracing::{info, warn};
use zagros_coordinator_core::{Core, CoreConfig, CoreInput};
use zagros_journal::{InputJournal, JournalError, JournalTime, RecoveredCore};
use zagros_protocol::{Refusal, RefusalKind};

/// A core whose inputs are in a journal, or in none where it runs in the process of all members.
pub(crate) struct JournaledCore {
    core: Core,
    journal: Option<InputJournal>,
    /// Time of the core when `started` was.
    base: Duration,
    started: Instant,
    /// Time of the last input.
    last: Duration,
    /// Whether the last input could not be written.
    is_failing: bool,
}

impl JournaledCore {
    /// A run that nobody has joined, without a journal.
    pub(crate) fn unwritten(config: CoreConfig) -> Self {
        Self::at(Core::new(config), None, Duration::ZERO)
    }

    /// The run that the journal in `folder` has, where its members may still be there; else a run that nobody has joined.
    ///
    /// # Errors
    /// When the folder cannot be used.
    pub(crate) fn open(config: CoreConfig, folder: &Path) -> Result<Self, JournalError> {
        let (mut journal, recovered) = InputJournal::open(folder)?;
        let wall_ms = wall_ms();
        match recovered.map(|recovered| continued(recovered, &config, wall_ms)) {
            Some(Ok((RecoveredCore { core, inputs, .. }, at))) => {
                info!(folder = %folder.display(), run = %core.config().run, inputs, "journal replayed");
                let mut journaled = Self::at(core, Some(journal), at);
                journaled.write(at, &CoreInput::Recover)?;
                journaled.core.recover(at);
                return Ok(journaled);
            }
            Some(Err(why)) => info!(folder = %folder.display(), "a new run begins: {why}"),
            None => {}
        }
        let core = Core::new(config);
        journal.begin(&core, JournalTime { at: Duration::ZERO, wall_ms })?;
        Ok(Self::at(core, Some(journal), Duration::ZERO))
    }

    fn at(core: Core, journal: Option<InputJournal>, base: Duration) -> Self {
        Self { core, journal, base, started: Instant::now(), last: base, is_failing: false }
    }

    /// The state as of the last input.
    pub(crate) fn core(&self) -> &Core {
        &self.core
    }

    /// As [`Self::core`], to take what is waiting there.
    pub(crate) fn core_mut(&mut self) -> &mut Core {
        &mut self.core
    }

    /// Time of the core, now.
    pub(crate) fn now(&self) -> Duration {
        (self.base + self.started.elapsed()).max(self.last)
    }

    /// Makes a call that may change the state. `input` says which.
    ///
    /// # Errors
    /// `Unavailable` when the journal cannot be written: nothing has changed then.
    pub(crate) fn call<R>(
        &mut self,
        input: impl FnOnce() -> CoreInput,
        call: impl FnOnce(&mut Core, Duration) -> R,
    ) -> Result<R, Refusal> {
        let now = self.now();
        if self.journal.is_some() {
            self.write(now, &input()).map_err(|error| Refusal::new(RefusalKind::Unavailable, error))?;
        }
        self.last = now;
        let answer = call(&mut self.core, now);
        self.cut(now);
        Ok(answer)
    }

    /// Answers a question, which changes nothing but the time. Where the journal cannot be written, time stands still.
    pub(crate) fn ask<R>(&mut self, question: impl FnOnce(&mut Core, Duration) -> R) -> R {
        // The failure is in the log, and the refusals of calls name it.
        let _ = self.call(|| CoreInput::Tick, Core::tick);
        question(&mut self.core, self.last)
    }

    /// The run is over, and its members know: nobody comes back to it.
    pub(crate) fn forget(&mut self) {
        if let Some(Err(error)) = self.journal.take().map(InputJournal::delete) {
            warn!(%error, "the journal of this run stays");
        }
    }

    fn write(&mut self, now: Duration, input: &CoreInput) -> Result<(), JournalError> {
        let Some(journal) = &mut self.journal else { return Ok(()) };
        let written = journal.append(JournalTime { at: now, wall_ms: wall_ms() }, input);
        if let Err(error) = &written
            && !self.is_failing
        {
            warn!(%error, "members are refused until the journal can be written again");
        }
        self.is_failing = written.is_err();
        written
    }

    /// A long journal becomes a snapshot.
    fn cut(&mut self, now: Duration) {
        let Some(journal) = self.journal.as_mut().filter(|journal| journal.is_long()) else { return };
        if let Err(error) = journal.snapshot(&self.core, JournalTime { at: now, wall_ms: wall_ms() }) {
            warn!(%error, "the journal was not cut; it grows");
        }
    }
}

/// The run of a journal, and the time of its core now; why it is over where nobody can be there any more.
fn continued(recovered: RecoveredCore, config: &CoreConfig, wall_ms: u64) -> Result<(RecoveredCore, Duration), String> {
    // A wall clock that was set back says nothing.
    let gap = Duration::from_millis(wall_ms.saturating_sub(recovered.time.wall_ms));
    if recovered.core.config().fingerprint != config.fingerprint {
        return Err("the journal is of another job".to_owned());
    }
    // Invariant WT-1: a member waits no longer for its coordinator.
    let longest = config.lease + config.timeout;
    if gap > longest {
        return Err(format!("no member of the journal's run waits after {gap:.0?} (at most {longest:.0?})"));
    }
    let at = recovered.time.at + gap;
    Ok((recovered, at))
}

/// Milliseconds since 1970.
fn wall_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}
