//! The live page as a person sees it: a real cluster, a real browser, at the width of a desk and of a phone.

mod browser;

use rustix::process::Signal;
use serde_json::Value;
use zagros_tests::{RunningCommand, signal_process};

use super::faults::pid;
use super::fixture::{Fixture, http_get, http_get_as, with_sets};
use browser::PageBrowser;

/// Shows a state in which each text is markup, to a page that would take it for that; counts what became of it.
const EVIL: &str = r#"(() => {
    const evil = '<img src="x" onerror="document.body.remove()"><script>document.body.remove()</' + 'script>';
    const next = structuredClone(run);
    Object.assign(next, { job: evil, state: evil, reason: evil, warnings: [evil] });
    next.members.forEach((member) => Object.assign(member, { name: evil, state: evil, address: evil }));
    next.evaluations.forEach((evaluation) => (evaluation.part = evil));
    adopt(next, true);
    const shown = ['h1', '#reason', '#warnings li'].every((place) => document.querySelector(place).innerText === evil);
    return [shown, document.querySelectorAll('img, main script').length];
})()"#;

const SETS: [&str; 8] = [
    "name=criteo-small",
    "train.epochs=1000",
    "data.validation_share=0.1",
    "checkpoint.every_seconds=2",
    "cluster.servers=2",
    "cluster.workers=2",
    "cluster.timeout_seconds=60",
    "cluster.lease_seconds=20",
];

fn start(fixture: &Fixture) -> (RunningCommand, String) {
    let mut run = fixture.start(with_sets(&["up", "job.toml"], &SETS));
    let line = run.wait_for_line("live page: http://127.0.0.1:");
    let url = line.split("live page: ").nth(1).expect("an address").trim().to_owned();
    (run, url)
}

/// Nothing reaches beyond the screen to the right.
fn fits(browser: &mut PageBrowser) {
    let widths = browser.value("[document.documentElement.scrollWidth, window.innerWidth]");
    assert!(widths[0].as_u64() <= widths[1].as_u64(), "the page is wider than the screen: {widths}");
}

#[test]
fn a_person_sees_the_run_its_trouble_and_its_end() {
    let fixture = Fixture::new(60_000);
    let Some(mut browser) = PageBrowser::start() else { return };
    let (mut run, url) = start(&fixture);
    browser.look(1280, 900, "light");
    browser.open(&url);
    browser.wait("training is shown", "document.getElementById('state').innerText.includes('training')");
    browser.wait("curves are drawn", "document.querySelectorAll('#charts polyline').length >= 3");
    browser.wait("an evaluation is shown", "document.querySelector('#evaluations td')");
    browser.wait(
        "validation is drawn beside training",
        "['#loss', '#auc'].every((chart) => document.querySelectorAll(`${chart} polyline.orange, ${chart} circle.orange`).length >= 2)",
    );
    browser.wait("a checkpoint is shown", "document.querySelector('#checkpoints td')");

    for (selector, words) in [
        ("#lead", &["epoch", "of 1000", "step", "running for"][..]),
        ("#progress", &["epoch", "splits done", "%"]),
        ("#speed", &["throughput", "/s"]),
        ("#area", &["validation AUC", "0."]),
        ("#stale", &["staleness", "of 4"]),
        ("#servers", &["server 0", "server 1", "buckets (50 %)", "512", "hit rate", "MiB", "lookup p99"]),
        ("#workers", &["worker 0", "worker 1", "waiting for rows", "network", "parse"]),
        ("#evaluations", &["validation"]),
    ] {
        let text = browser.text(selector);
        words.iter().for_each(|word| assert!(text.contains(word), "no {word:?} in {selector}: {text}"));
    }
    fits(&mut browser);
    if std::env::var_os("ZAGROS_SCREENSHOTS").is_some() {
        browser.wait("there is something to look at", "run.history.length > 45");
    }
    browser.picture("page-1280-light");
    browser.look(1280, 900, "dark");
    browser.picture("page-1280-dark");
    for scheme in ["light", "dark"] {
        browser.look(390, 844, scheme);
        fits(&mut browser);
        browser.picture(&format!("page-390-{scheme}"));
    }

    // The page names a server that stands still.
    let server = pid(&fixture, "embedding-server-1");
    signal_process(server, Signal::STOP);
    browser.wait(
        "the silent server is reported",
        "document.getElementById('findings').innerText.includes('embedding server 1 shows no sign of life')",
    );
    browser.picture("page-390-slow");
    signal_process(server, Signal::CONT);
    browser.wait(
        "the finding goes when it answers",
        "!document.getElementById('findings').innerText.includes('no sign of life')",
    );

    assert_eq!(browser.value(EVIL), serde_json::json!([true, 0]), "what is text became markup");
    browser.wait("the next event puts it right", "document.querySelector('h1').innerText === 'criteo-small'");

    // The browser asked this server and no other one, and had nothing to complain of.
    let asked = browser.asked();
    assert!(asked.iter().any(|asked| asked == &format!("{url}events")), "{asked:?}");
    assert!(asked.iter().all(|asked| asked.starts_with(&url)), "{asked:?}");
    assert_eq!(browser.complaints(), [""; 0], "the browser complains");

    run.signal(Signal::INT);
    browser.wait("the end is reported", "document.getElementById('state').innerText.includes('interrupted')");
    browser.wait("the outcome is reported", "document.getElementById('ended').innerText.includes('The run is over')");
    run.wait_for_line("interrupted");
    run.finish().expect(130);
}

#[test]
fn a_coordinator_that_is_silent_and_killed_comes_back_on_the_page() {
    let fixture = Fixture::new(60_000);
    let Some(mut browser) = PageBrowser::start() else { return };
    let (run, url) = start(&fixture);
    browser.open(&url);
    browser.wait("training is shown", "document.getElementById('state').innerText.includes('training')");
    let coordinator = pid(&fixture, "coordinator");
    signal_process(coordinator, Signal::STOP);
    browser.wait(
        "the lost connection is reported",
        "document.getElementById('connection').innerText.includes('Connection lost since')",
    );
    // `zagros up` starts it again in place.
    signal_process(coordinator, Signal::KILL);
    browser.wait(
        "training is shown again",
        "document.getElementById('connection').innerText === '' && document.getElementById('state').innerText.includes('training')",
    );
    run.interrupt();
}

#[test]
fn programs_get_the_status_and_other_hosts_get_nothing() {
    let fixture = Fixture::new(60_000);
    let (run, url) = start(&fixture);
    let address = url.trim_start_matches("http://").trim_end_matches('/');
    let status = http_get(address, "/status");
    let status: Value = serde_json::from_str(status.split("\r\n\r\n").nth(1).expect("a body")).expect("JSON");
    assert_eq!(status["job"], "criteo-small");
    for path in ["/", "/status", "/metrics"] {
        let refused = http_get_as("evil.example", address, path);
        assert!(refused.starts_with("HTTP/1.1 403") && refused.contains("serves this machine only"), "{refused}");
    }
    let page = http_get(address, "/");
    assert!(page.starts_with("HTTP/1.1 200") && page.contains("content-security-policy: default-src 'none'"), "{page}");
    assert!(!page.contains("criteo-small"), "the job's name is in the document, where it would have to be escaped");
    run.interrupt();
}
