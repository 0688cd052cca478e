//! The dashboard on a pseudo-terminal, and the logs of a run.

use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{Winsize, tcsetwinsize};
use zagros_tests::{ChildGuard, TestProgram, assert_contains};

use super::fixture::{Fixture, wait_for, with_sets};

const TIMEOUT: Duration = Duration::from_secs(120);
/// The codes that make a terminal show its other screen, and go back.
const TAKE: &str = "\u{1b}[?1049h";
const GIVE_BACK: &str = "\u{1b}[?1049l";
const LONG: [&str; 4] = ["train.epochs=1000", "cluster.workers=2", "cluster.servers=2", "cluster.lease_seconds=20"];

/// A zagros on a terminal of its own.
struct OnTerminal {
    child: ChildGuard,
    keyboard: File,
    shown: Arc<Mutex<String>>,
}

impl OnTerminal {
    fn start(fixture: &Fixture, arguments: &[&str]) -> Self {
        let near: OwnedFd = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).expect("a pseudo-terminal");
        grantpt(&near).and_then(|()| unlockpt(&near)).expect("its other end is opened");
        tcsetwinsize(&near, Winsize { ws_row: 40, ws_col: 120, ws_xpixel: 0, ws_ypixel: 0 }).expect("its size");
        let name = ptsname(&near, Vec::new()).expect("its name").into_string().expect("text");
        let far = || Stdio::from(OpenOptions::new().read(true).write(true).open(&name).expect("the other end"));
        let child = Command::new(TestProgram::Zagros.path())
            .args(arguments)
            .current_dir(fixture.folder())
            .env("TERM", "xterm-256color")
            .stdin(far())
            .stdout(far())
            .stderr(far())
            .spawn()
            .expect("zagros starts");
        let keyboard = File::from(near);
        let mut screen = keyboard.try_clone().expect("one end is read and written");
        let shown = Arc::new(Mutex::new(String::new()));
        let all = Arc::clone(&shown);
        std::thread::spawn(move || {
            let mut bytes = [0; 4096];
            // An error says that no process has the other end any more.
            while let Ok(read @ 1..) = screen.read(&mut bytes) {
                all.lock().expect("no panic").push_str(&String::from_utf8_lossy(&bytes[..read]));
            }
        });
        Self { child: ChildGuard(child), keyboard, shown }
    }

    fn shown(&self) -> String {
        self.shown.lock().expect("no panic").clone()
    }

    fn wait_for(&self, text: &str) {
        wait_for(TIMEOUT, || {
            let shown = self.shown();
            if shown.contains(text) { Ok(()) } else { Err(format!("no {text:?} in:\n{shown}")) }
        });
    }

    fn press(&mut self, key: &str) {
        self.keyboard.write_all(key.as_bytes()).expect("the key is pressed");
    }

    fn end(&mut self) -> Option<i32> {
        let ended = wait_for(TIMEOUT, || {
            let status = self.child.0.try_wait().expect("it is waited for");
            status.ok_or_else(|| format!("it does not end; shown:\n{}", self.shown()))
        });
        ended.code()
    }
}

#[test]
fn a_dashboard_is_drawn_and_a_key_gives_the_terminal_back_while_the_run_goes_on() {
    let fixture = Fixture::new(20_000);
    let run = fixture.start_until("dense worker 0     │ step ", with_sets(&["up", "job.toml"], &LONG));
    for key in ["\u{3}", "q"] {
        let mut view = OnTerminal::start(&fixture, &["status", "--watch"]);
        let shown = [TAKE, "training", "throughput:", "embedding", "measures", "splits"];
        shown.iter().for_each(|text| view.wait_for(text));
        view.press(key);
        assert_eq!(view.end(), Some(0), "{}", view.shown());
        view.wait_for(GIVE_BACK);
        let shown = view.shown();
        let (_, after) = shown.split_once(GIVE_BACK).expect("given back");
        assert!(after.contains("training"), "the last status is not shown:\n{after}");
    }
    run.interrupt();
}

#[test]
fn without_a_terminal_or_a_run_there_is_nothing_to_watch() {
    let fixture = Fixture::new(100);
    fixture.zagros(["logs"]).expect(2).says(&["no run with logs below runs", "zagros logs RUN"]);
    let refused = fixture.zagros(["status", "--watch"]).expect(2);
    refused.says(&["--watch needs a terminal", "zagros status --json"]);
}

/// Of a run of the fixture's folder that has ended, with two servers.
pub(crate) fn has_logs_by_role_level_and_age(fixture: &Fixture) {
    for name in ["coordinator", "embedding-server-0", "embedding-server-1", "dense-worker-0"] {
        let log = fixture.run_folder().join(format!("logs/{name}.log"));
        assert!(std::fs::metadata(&log).expect("a log").len() > 0, "{}", log.display());
    }
    let all = fixture.zagros(["logs"]).expect(0).stdout;
    let stamps: Vec<&str> = all.lines().filter_map(|line| line.split(' ').next()).collect();
    assert!(stamps.len() > 10 && stamps.is_sorted(), "not in the order of time:\n{all}");
    assert_contains(&all, &["coordinator        │ INFO training starts", "embedding server 1 │"]);
    assert_contains(&all, &["dense worker 0     │"]);
    let run = fixture.run_folder();
    let run = run.to_str().expect("text");
    let server = fixture.zagros(["logs", run, "--role", "server", "--index", "1"]).expect(0).stdout;
    assert!(!server.is_empty() && server.lines().all(|line| line.contains("embedding server 1 │")), "{server}");
    assert_eq!(fixture.zagros(["logs", "--level", "error"]).expect(0).stdout, "");
    assert_eq!(fixture.zagros(["logs", "--since", "2h"]).expect(0).stdout, all);
    fixture.zagros(["logs", "--role", "server", "--index", "7"]).expect(2).says(&["no log of that role and index"]);
    fixture.zagros(["logs", "nowhere"]).expect(2).says(&["cannot read the logs in nowhere/logs"]);
}
