//! A run on a terminal, updated each second: `zagros status --watch`.

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

/// The terminal. Dropping this gives it back. After a panic, ratatui's own hook gives it back.
struct TerminalGuard(DefaultTerminal);

impl TerminalGuard {
    /// The error says what to do instead.
    fn take() -> Result<Self, Failure> {
        if std::io::stdout().is_terminal() && std::io::stdin().is_terminal() {
            return Ok(Self(ratatui::try_init().or_internal()?));
        }
        let what = "--watch needs a terminal, but standard input or output is not one";
        let help = "omit --watch, or print the status once: zagros status --json";
        Err(Failure::usage(what, help))
    }
}

impl Drop for TerminalGuard {
    fn drop(&mut self) {
        ratatui::restore();
    }
}

/// Draws until a key, or the end of the run. Returns the last status. An answer may take as long as `timeout`.
pub(crate) async fn watch_run(control: &dyn ControlPlane, timeout: Duration) -> Result<Option<StatusReport>, Failure> {
    let mut screen = TerminalGuard::take()?;
    let mut keys = KeyReader::listen();
    let mut ticks = interval(PERIOD);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut picture = RunPicture::default();
    let mut heard = Instant::now();
    loop {
        let key = tokio::select! {
            biased;
            key = keys.next() => Some(key),
            _ = ticks.tick() => None,
        };
        match key {
            Some(KeyInput::Quit) => return Ok(picture.status),
            Some(KeyInput::Resize) => {}
            None => look((control, timeout), &mut picture, &mut heard).await,
        }
        screen.0.draw(|frame| view::draw(frame, &picture)).or_internal()?;
        if picture.status.as_ref().is_some_and(is_over) {
            return Ok(picture.status);
        }
    }
}

fn is_over(status: &StatusReport) -> bool {
    matches!(status.state.as_str(), "finished" | "interrupted" | "failed")
}

/// Requests the status once. A short silence is not shown.
async fn look((control, timeout): (&dyn ControlPlane, Duration), picture: &mut RunPicture, heard: &mut Instant) {
    let asked = Deadline::from_now(timeout.min(PERIOD)).bound(control.status(StatusRequest {})).await;
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
                Some(format!("{} has not answered for {silence} s; the status below is old", control.name()));
        }
    }
}

/// How long the thread may take to notice that [`KeyReader`] is gone.
const POLL: Duration = Duration::from_millis(100);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum KeyInput {
    /// `q`, Escape, or Ctrl-C, which a terminal in raw mode delivers as a key.
    Quit,
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
            KeyCode::Char('c') => modifiers.contains(KeyModifiers::CONTROL).then_some(KeyInput::Quit),
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
        assert_eq!(key(KeyCode::Char('c'), KeyModifiers::CONTROL), Some(KeyInput::Quit));
        assert_eq!(key(KeyCode::Char('c'), KeyModifiers::NONE), None);
        assert_eq!(key_of(&Event::Resize(80, 24)), Some(KeyInput::Resize));
        let released = KeyEvent::new_with_kind(KeyCode::Char('q'), KeyModifiers::NONE, KeyEventKind::Release);
        assert_eq!(key_of(&Event::Key(released)), None);
    }
}
