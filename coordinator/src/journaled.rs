//! The core with its clock and its journal: an input is in the journal before it takes effect (invariant MB-5).

use std::path::PathBuf;
use std::time::{SystemTime, UNIX_EPOCH};

use crate::journal::{InputJournal, JournalError, JournalTime, MachineStart, RecoveredCore};
use tokio::time::{Duration, Instant};
use tracing::{info, warn};
use zagros_coordinator_core::{Core, CoreConfig, CoreInput, RunOutcome};
use zagros_protocol::{Refusal, RefusalKind};

/// Questions within this time after an input are answered as of that input, and write nothing.
const ANSWER_AGE: Duration = Duration::from_millis(50);

#[derive(Clone, Debug)]
pub struct JournalUse {
    pub folder: PathBuf,
    pub runs: JournalRuns,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum JournalRuns {
    /// One run after the other. The journal of a run that is over is deleted.
    #[default]
    Many,
    /// One run. Its journal stays, so a process that starts after its end finds how the run ended.
    One,
}

/// A core whose inputs are in a journal, or in none where it runs in the process of all members.
pub(crate) struct JournaledCore {
    /// Its inputs come through [`Self::call_core`], which writes them to the journal first. What waits in it may be taken.
    pub(crate) core: Core,
    journal: Option<InputJournal>,
    runs: JournalRuns,
    /// Time of the core when `started` was.
    base: Duration,
    started: Instant,
    last: Duration,
    /// Since when no input could be written, and why; `None` while the journal takes them. Time stands still meanwhile: no lease
    /// expires, and the run cannot end.
    pub(crate) failing: Option<JournalFailure>,
}

#[derive(Clone, Debug)]
pub(crate) struct JournalFailure {
    /// When the first input was refused, by the clock of this process.
    pub(crate) since: Instant,
    pub(crate) why: String,
}

impl JournaledCore {
    pub(crate) fn without_journal(config: CoreConfig) -> Self {
        Self::with_base(Core::new(config), None, Duration::ZERO)
    }

    /// The run that the journal has, if its members may still be there and the journal has all of it. Otherwise a run
    /// that no process has joined; for a journal of one run, that run as it ended.
    pub(crate) fn open(config: CoreConfig, JournalUse { folder, runs }: &JournalUse) -> Result<Self, JournalError> {
        let (mut journal, recovered) = InputJournal::open(folder)?;
        let wall_ms = wall_ms();
        if let Some(recovered) = recovered {
            let resumed_at = recovered.time.at + gap(&recovered, wall_ms);
            let why = why_over(&recovered, &config, wall_ms);
            if why.is_none() || *runs == JournalRuns::One {
                let RecoveredCore { core, inputs, .. } = recovered;
                info!(folder = %folder.display(), run = %core.config().run, inputs, "journal replayed");
                return Self { runs: *runs, ..Self::with_base(core, Some(journal), resumed_at) }
                    .continued(resumed_at, why);
            }
            warn!(folder = %folder.display(), "a new run begins: {}", why.unwrap_or_default());
        }
        let core = Core::new(config);
        journal.begin_run(&core, JournalTime { at: Duration::ZERO, wall_ms })?;
        Ok(Self { runs: *runs, ..Self::with_base(core, Some(journal), Duration::ZERO) })
    }

    /// Goes on with a replayed run, unless it is over. `why` says why no member can be left of it.
    fn continued(mut self, at: Duration, why: Option<String>) -> Result<Self, JournalError> {
        if self.core.outcome().is_some() {
            return Ok(self);
        }
        self.write(at, &CoreInput::Recover)?;
        self.core.recover(at);
        if let Some(why) = why {
            let outcome = RunOutcome::Failed(format!("the coordinator cannot continue the run: {why}"));
            self.write(at, &CoreInput::End(outcome.clone()))?;
            self.core.end_run(at, outcome);
        }
        Ok(self)
    }

    fn with_base(core: Core, journal: Option<InputJournal>, base: Duration) -> Self {
        let (runs, started) = (JournalRuns::Many, Instant::now());
        Self { core, journal, runs, base, started, last: base, failing: None }
    }

    pub(crate) fn core_time(&self) -> Duration {
        (self.base + self.started.elapsed()).max(self.last)
    }

    /// `input` says which call it is. If the journal cannot be written, nothing has changed (`Unavailable`).
    pub(crate) fn call_core<R>(
        &mut self,
        input: impl FnOnce() -> CoreInput,
        call: impl FnOnce(&mut Core, Duration) -> R,
    ) -> Result<R, Refusal> {
        let now = self.core_time();
        if self.journal.is_some() {
            self.write(now, &input()).map_err(|error| Refusal::new(RefusalKind::Unavailable, error))?;
        }
        self.last = now;
        let answer = call(&mut self.core, now);
        self.cut(now);
        Ok(answer)
    }

    /// Answers a question, which changes nothing. The time moves before it, unless it has just moved; and where the journal
    /// cannot be written, it stands still.
    pub(crate) fn ask_core<R>(&mut self, question: impl FnOnce(&Core, Duration) -> R) -> R {
        if self.core_time() - self.last >= ANSWER_AGE {
            // The failure is in the log, and the refusals of calls name it.
            let _ = self.call_core(|| CoreInput::Tick, Core::tick);
        }
        question(&self.core, self.last)
    }

    /// The run is over, and its members know: no process comes back to it.
    pub(crate) fn forget_run(&mut self) {
        if self.runs == JournalRuns::One {
            return;
        }
        if let Some(Err(error)) = self.journal.take().map(InputJournal::delete) {
            warn!(%error, "the journal of this run stays");
        }
    }

    /// This process ends, and the next one goes on, maybe on another machine.
    pub(crate) fn hand_over(&mut self) {
        if let Some(Err(error)) = self.journal.as_mut().map(InputJournal::hand_over) {
            warn!(%error, "the next coordinator can go on with the run on this machine only");
        }
    }

    fn write(&mut self, now: Duration, input: &CoreInput) -> Result<(), JournalError> {
        let Some(journal) = &mut self.journal else { return Ok(()) };
        let written = journal.append(JournalTime { at: now, wall_ms: wall_ms() }, input);
        match &written {
            Ok(()) if self.failing.take().is_some() => info!("the journal can be written again"),
            Ok(()) => {}
            Err(error) if self.failing.is_none() => {
                warn!(%error, "members are refused until the journal can be written again");
                self.failing = Some(JournalFailure { since: Instant::now(), why: error.to_string() });
            }
            Err(_) => {}
        }
        written
    }

    /// A long journal becomes a snapshot.
    fn cut(&mut self, now: Duration) {
        let Some(journal) = self.journal.as_mut().filter(|journal| journal.is_long()) else { return };
        if let Err(error) = journal.take_snapshot(&self.core, JournalTime { at: now, wall_ms: wall_ms() }) {
            warn!(%error, "the journal was not cut; it grows");
        }
    }
}

/// The time since the last input. A wall clock that was set back says nothing.
fn gap(recovered: &RecoveredCore, wall_ms: u64) -> Duration {
    Duration::from_millis(wall_ms.saturating_sub(recovered.time.wall_ms))
}

/// Why no member can be left of the run of a journal, if so.
fn why_over(recovered: &RecoveredCore, config: &CoreConfig, wall_ms: u64) -> Option<String> {
    if recovered.core.config().fingerprint != config.fingerprint {
        return Some("the journal is of another job".to_owned());
    }
    if recovered.machine == MachineStart::StartedAgain {
        return Some(
            "the machine was started again since the journal was written, and its newest entries may be lost; \
                    a process that is left of the journal's run ends, and the run resumes from the newest checkpoint"
                .to_owned(),
        );
    }
    // Invariant WT-1: a member waits no longer for its coordinator.
    let (gap, longest) = (gap(recovered, wall_ms), config.lease + config.timeout);
    (gap > longest).then(|| format!("no member of the journal's run waits after {gap:.0?} (at most {longest:.0?})"))
}

fn wall_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}
