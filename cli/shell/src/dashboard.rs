//! A run on a terminal, updated each second: `zagros status --watch` and `zagros up --watch`.

mod view;

use std::io::IsTerminal;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use tokio::sync::mpsc;
use tokio::time::{Instant, MissedTickBehavior, interval};
use zagros_coordinator::StatusReport;
use zagros_coordinator_client::ControlPlane;
use zagros_plumbing::Deadline;
use zagros_protocol::control::StatusRequest;

use self::view::RunPicture;
use crate::exit::{Failure, OrFailure};

const PERIOD: Duration = Duration::from_secs(1);
const SILENCE: Duration = Duration::from_secs(3);

/// Whether this module has the terminal, for [`give_back`].
static TAKEN: AtomicBool = AtomicBool::new(false);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DashboardEnd {
    /// `q`: the user left the view, and the run goes on.
    View,
    /// Ctrl-C: the run must stop, if this process runs it.
    Stop,
    Ended,
}

pub struct WatchedRun {
    pub control: Arc<dyn ControlPlane>,
    /// How long an answer may take.
    pub timeout: Duration,
    /// The last lines of the log, oldest first.
    pub lines: Box<dyn Fn() -> Vec<String> + Send + Sync>,
    /// What the keys do, shown in the last line of the screen.
    pub keys: &'static str,
}

/// The error says what to do instead.
pub fn check_terminal() -> Result<(), Failure> {
    if std::io::stdout().is_terminal() && std::io::stdin().is_terminal() {
        return Ok(());
    }
    let what = "--watch needs a terminal, but standard input or output is not one";
    let help = "omit --watch, or print the status once: zagros status --json";
    Err(Failure::usage(what, help))
}

/// The terminal. Dropping this gives it back. After a panic, ratatui's own hook gives it back.
struct TerminalGuard(DefaultTerminal);

impl TerminalGuard {
    fn take() -> Result<Self, Failure> {
        let terminal = ratatui::try_init().or_internal()?;
        TAKEN.store(true, Ordering::SeqCst);
        Ok(Self(terminal))
    }
}

impl Drop for TerminalGuard {
    fn drop(&mut self) {
        give_back();
    }
}

/// Gives the terminal back if a dashboard has it. For code that ends the process at once.
pub(crate) fn give_back() {
    if TAKEN.swap(false, Ordering::SeqCst) {
        ratatui::restore();
    }
}

/// Draws until a key, the end of the run, or the end of `over`. Returns the reason and the last status.
pub async fn watch(
    watched: &WatchedRun,
    over: impl Future<Output = ()>,
) -> Result<(DashboardEnd, Option<StatusReport>), Failure> {
    let mut screen = TerminalGuard::take()?;
    let mut keys = KeyReader::listen();
    let mut ticks = interval(PERIOD);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut picture = RunPicture { keys: watched.keys, ..RunPicture::default() };
    let mut heard = Instant::now();
    tokio::pin!(over);
    loop {
        let key = tokio::select! {
            biased;
            () = &mut over => return Ok((DashboardEnd::Ended, picture.status)),
            key = keys.next() => Some(key),
            _ = ticks.tick() => None,
        };
        match key {
            Some(KeyInput::Quit) => return Ok((DashboardEnd::View, picture.status)),
            Some(KeyInput::Interrupt) => return Ok((DashboardEnd::Stop, picture.status)),
            Some(KeyInput::Resize) => {}
            None => look(watched, &mut picture, &mut heard).await,
        }
        picture.lines = (watched.lines)();
        screen.0.draw(|frame| view::draw(frame, &picture)).or_internal()?;
        if picture.status.as_ref().is_some_and(is_over) {
            return Ok((DashboardEnd::Ended, picture.status));
        }
    }
}

fn is_over(status: &StatusReport) -> bool {
    matches!(status.state.as_str(), "finished" | "interrupted" | "failed")
}

/// Requests the status once. A short silence is not shown.
async fn look(watched: &WatchedRun, picture: &mut RunPicture, heard: &mut Instant) {
    let asked = Deadline::from_now(watched.timeout.min(PERIOD)).bound(watched.control.status(StatusRequest {})).await;
    match asked {
        Ok(Ok(status)) => {
            *heard = Instant::now();
            picture.trouble = None;
            picture.status = Some(StatusReport::from(status));
        }
        _ if heard.elapsed() < SILENCE => {}
        _ => {
            let silence = heard.elapsed().as_secs();
            picture.trouble =
                Some(format!("{} has not answered for {silence} s; the status below is old", watched.control.name()));
        }
    }
}

/// How long the thread may take to notice that [`KeyReader`] is gone.
const POLL: Duration = Duration::from_millis(100);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum KeyInput {
    /// `q` or Escape.
    Quit,
    /// Ctrl-C. A terminal in raw mode delivers it as a key.
    Interrupt,
    /// The terminal has another size.
    Resize,
}

/// Reads the keys of the terminal on a separate thread, because reading blocks.
struct KeyReader {
    keys: mpsc::Receiver<KeyInput>,
    stop: Arc<AtomicBool>,
}

impl KeyReader {
    fn listen() -> Self {
        let (sender, keys) = mpsc::channel(16);
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        std::thread::spawn(move || {
            while !stopped.load(Ordering::Relaxed) {
                match event::poll(POLL) {
                    Ok(true) => {}
                    Ok(false) => continue,
                    Err(_) => return,
                }
                let Ok(event) = event::read() else { return };
                if key_of(&event).is_some_and(|key| sender.blocking_send(key).is_err()) {
                    return;
                }
            }
        });
        Self { keys, stop }
    }

    /// The next key. Waits for ever if there are no keys any more.
    async fn next(&mut self) -> KeyInput {
        match self.keys.recv().await {
            Some(key) => key,
            None => std::future::pending().await,
        }
    }
}

impl Drop for KeyReader {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

fn key_of(event: &Event) -> Option<KeyInput> {
    match event {
        Event::Resize(..) => Some(KeyInput::Resize),
        Event::Key(KeyEvent { code, modifiers, kind: KeyEventKind::Press, .. }) => match code {
            KeyCode::Char('c') if modifiers.contains(KeyModifiers::CONTROL) => Some(KeyInput::Interrupt),
            KeyCode::Char('q') | KeyCode::Esc => Some(KeyInput::Quit),
            _ => None,
        },
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_do_what_the_screen_says() {
        let key = |code, modifiers| key_of(&Event::Key(KeyEvent::new(code, modifiers)));
        assert_eq!(key(KeyCode::Char('q'), KeyModifiers::NONE), Some(KeyInput::Quit));
        assert_eq!(key(KeyCode::Char('c'), KeyModifiers::CONTROL), Some(KeyInput::Interrupt));
        assert_eq!(key(KeyCode::Char('c'), KeyModifiers::NONE), None);
        assert_eq!(key_of(&Event::Resize(80, 24)), Some(KeyInput::Resize));
        let released = KeyEvent::new_with_kind(KeyCode::Char('q'), KeyModifiers::NONE, KeyEventKind::Release);
        assert_eq!(key_of(&Event::Key(released)), None);
    }
}
