//! Keys of the terminal, read on a separate thread, because reading blocks.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use ratatui::crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use tokio::sync::mpsc;

/// How long the thread may take to notice that [`KeyReader`] is gone.
const POLL: Duration = Duration::from_millis(100);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum KeyInput {
    /// `q` or Escape.
    Quit,
    /// Ctrl-C. A terminal in raw mode delivers it as a key.
    Interrupt,
    /// The terminal has another size.
    Resize,
}

pub(super) struct KeyReader {
    keys: mpsc::Receiver<KeyInput>,
    stop: Arc<AtomicBool>,
}

impl KeyReader {
    pub(super) fn listen() -> Self {
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
    pub(super) async fn next(&mut self) -> KeyInput {
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
