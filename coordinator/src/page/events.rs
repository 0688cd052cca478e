//! Sends each listener one event a second. A listener that does not read delays its own connection only.

use std::sync::Arc;
use std::time::Duration;

use axum::http::{StatusCode, header};
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use futures::stream::{self, Stream};
use serde::Serialize;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Interval, MissedTickBehavior, interval};
use zagros_plumbing::Shutdown;

use super::axes::PageAxes;
use crate::{LocalCoordinator, StatusReport};

const MOST: usize = 32;
const PERIOD: Duration = Duration::from_secs(1);
/// How long a browser waits before it connects again.
const RETRY: Duration = Duration::from_secs(2);

pub(super) struct EventStreams {
    coordinator: Arc<LocalCoordinator>,
    shutdown: Shutdown,
    places: Arc<Semaphore>,
}

impl EventStreams {
    pub(super) fn new(coordinator: Arc<LocalCoordinator>, shutdown: Shutdown) -> Self {
        Self { coordinator, shutdown, places: Arc::new(Semaphore::new(MOST)) }
    }

    /// Events until the coordinator ends.
    pub(super) fn stream_events(&self) -> Response {
        let Ok(place) = Arc::clone(&self.places).try_acquire_owned() else {
            let text = format!("{MOST} browsers watch this run already; close one, or ask /status\n");
            return (StatusCode::SERVICE_UNAVAILABLE, [(header::RETRY_AFTER, "10")], text).into_response();
        };
        let mut ticks = interval(PERIOD);
        // After a stall the newest state is enough.
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let listener = EventListener {
            coordinator: Arc::clone(&self.coordinator),
            shutdown: self.shutdown.clone(),
            ticks,
            seen: SentLists::default(),
            is_over: false,
            _place: place,
        };
        Sse::new(listener.events()).keep_alive(KeepAlive::new()).into_response()
    }
}

/// What an event carries: a report, perhaps without the points that were sent before, and the axes of the whole report.
#[derive(Serialize)]
struct PageState {
    #[serde(flatten)]
    report: StatusReport,
    axes: PageAxes,
}

struct EventListener {
    coordinator: Arc<LocalCoordinator>,
    shutdown: Shutdown,
    ticks: Interval,
    seen: SentLists,
    is_over: bool,
    _place: OwnedSemaphorePermit,
}

/// How much of the lists of a report was sent to a listener.
#[derive(Debug, Default, PartialEq)]
struct SentLists {
    /// End of the last point of the history, seconds.
    seconds: f64,
    evaluations: usize,
    /// Step of the last evaluation.
    step: u64,
}

impl EventListener {
    fn events(self) -> impl Stream<Item = Result<Event, axum::Error>> + Send {
        stream::unfold(Some(self), async |listener| {
            let mut listener = listener?;
            let event = listener.next().await;
            Some((event, (!listener.is_over).then_some(listener)))
        })
    }

    /// The next event. The first is `whole`. Then come `next` events, which have new points only. The last is `end`, which
    /// has the whole report.
    async fn next(&mut self) -> Result<Event, axum::Error> {
        tokio::select! {
            _ = self.ticks.tick() => {}
            () = self.shutdown.requested() => self.is_over = true,
        }
        let report = StatusReport::from(self.coordinator.read_status());
        let axes = PageAxes::new(&report);
        let is_first = self.seen == SentLists::default();
        let seen = std::mem::replace(&mut self.seen, SentLists::new(&report));
        let (name, report) = match (self.is_over, is_first) {
            (true, _) => ("end", report),
            (false, true) => ("whole", report),
            (false, false) => ("next", seen.unsent(report)),
        };
        Event::default().event(name).retry(RETRY).json_data(PageState { report, axes })
    }
}

impl SentLists {
    fn new(report: &StatusReport) -> Self {
        Self {
            seconds: report.history.last().map_or(0.0, |point| point.seconds),
            evaluations: report.evaluations.len(),
            step: report.evaluations.last().map_or(0, |evaluation| evaluation.step),
        }
    }

    /// The report with the points that were not sent. It has no evaluations if all of them were sent.
    fn unsent(&self, mut report: StatusReport) -> StatusReport {
        let now = Self::new(&report);
        report.history.retain(|point| point.seconds > self.seconds);
        if (now.evaluations, now.step) == (self.evaluations, self.step) {
            report.evaluations.clear();
        }
        report
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{EvaluationReport, HistoryReport};

    fn report(seconds: &[f64], steps: &[u64]) -> StatusReport {
        let point = |seconds: &f64| HistoryReport { seconds: *seconds, ..HistoryReport::default() };
        let evaluation = |step: &u64| EvaluationReport { step: *step, ..EvaluationReport::default() };
        StatusReport {
            history: seconds.iter().map(point).collect(),
            evaluations: steps.iter().map(evaluation).collect(),
            ..StatusReport::default()
        }
    }

    #[test]
    fn only_what_is_new_is_sent_again() {
        let seen = SentLists::new(&report(&[1.0, 2.0], &[8]));
        assert_eq!(seen.unsent(report(&[1.0, 2.0, 3.0], &[8])), report(&[3.0], &[]));
        assert_eq!(seen.unsent(report(&[1.0, 2.0], &[8, 16])), report(&[], &[8, 16]));
        // The history was thinned in between: its last point covers the same time as before.
        assert_eq!(seen.unsent(report(&[2.0, 4.0], &[8])), report(&[4.0], &[]));
    }
}
