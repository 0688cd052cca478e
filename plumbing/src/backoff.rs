//! Retries with pauses, up to a deadline that is set in advance.

use std::future::Future;
use std::time::Duration;

use rand::Rng;
use tokio::time::Instant;

/// A point in time at which every wait ends.
#[derive(Clone, Copy, Debug)]
pub struct Deadline {
    started: Instant,
    timeout: Duration,
}

impl Deadline {
    pub fn from_now(timeout: Duration) -> Self {
        Self { started: Instant::now(), timeout }
    }

    /// Time left. Zero when the deadline has passed.
    pub fn time_left(&self) -> Duration {
        self.timeout.saturating_sub(self.started.elapsed())
    }

    pub fn is_past(&self) -> bool {
        self.time_left().is_zero()
    }

    pub fn time_waited(&self) -> Duration {
        self.started.elapsed()
    }

    /// Runs `work` up to the deadline (invariant WT-1).
    /// If the deadline passes first, the error is the time waited. The caller adds what it waited for.
    pub async fn bound<T>(&self, work: impl Future<Output = T>) -> Result<T, Duration> {
        let left = self.time_left();
        tokio::time::timeout(left, work).await.map_err(|_| left)
    }
}

/// A try with less time fails for want of it, and hides what the one before has learned.
const LEAST: Duration = Duration::from_millis(20);

/// Exponential backoff with jitter, so that many clients do not retry at the same time.
#[derive(Clone, Copy, Debug)]
pub struct Backoff {
    pub first: Duration,
    pub most: Duration,
}

impl Default for Backoff {
    fn default() -> Self {
        Self { first: Duration::from_millis(50), most: Duration::from_secs(2) }
    }
}

impl Backoff {
    /// The pause before retry number `attempt`, counted from 0.
    pub fn pause_before(&self, attempt: u32) -> Duration {
        let ceiling = self.first.saturating_mul(2_u32.saturating_pow(attempt)).min(self.most);
        // At least half of the largest pause. A random pause near zero would overload a peer that is starting.
        ceiling.mul_f64(rand::rng().random_range(0.5..1.0))
    }

    /// Calls `attempt` until it succeeds, fails for good, or the deadline passes. The first try is always made. A caller
    /// bounds a long attempt with [`Deadline::bound`].
    pub async fn retry<T, E, F>(
        &self,
        deadline: Deadline,
        is_retryable: impl Fn(&E) -> bool,
        mut attempt: impl FnMut() -> F,
    ) -> Result<T, E>
    where
        F: Future<Output = Result<T, E>>,
    {
        let mut tries = 0;
        loop {
            match attempt().await {
                Err(error) if is_retryable(&error) => {
                    tokio::time::sleep(self.pause_before(tries).min(deadline.time_left())).await;
                    if deadline.time_left() < LEAST {
                        tokio::time::sleep(deadline.time_left()).await;
                        return Err(error);
                    }
                    tries += 1;
                }
                done => return done,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_retry_stops_at_the_deadline_with_the_last_error_and_at_a_final_error_at_once() {
        for last in [u32::MAX, 3] {
            let (deadline, mut tries) = (Deadline::from_now(Duration::from_secs(10)), 0);
            let attempt = || {
                tries += 1;
                std::future::ready(Err::<(), u32>(tries))
            };
            let failed = Backoff::default().retry(deadline, |error| *error != last, attempt).await;
            assert_eq!((failed, deadline.is_past()), (Err(tries), last == u32::MAX), "{last} is final");
            assert!(if last == 3 { tries == 3 } else { tries > 5 }, "{tries} tries, and {last} is final");
        }
    }

    /// It would fail for want of time, and hide what the one before has learned.
    #[tokio::test(start_paused = true)]
    async fn no_attempt_is_made_just_before_the_deadline() {
        for _ in 0..200 {
            let deadline = Deadline::from_now(Duration::from_millis(300));
            let backoff = Backoff { first: Duration::from_millis(20), most: Duration::from_millis(40) };
            let attempt = || std::future::ready(Err::<(), _>(deadline.time_left()));
            let left = backoff.retry(deadline, |_| true, attempt).await.unwrap_err();
            assert!(left >= LEAST && deadline.is_past(), "an attempt had {left:?}");
        }
    }

    /// Invariant WT-1: no wait exceeds the deadline, and the last real error is reported.
    #[tokio::test(start_paused = true)]
    async fn an_attempt_that_hangs_does_not_outlast_the_deadline() {
        let deadline = Deadline::from_now(Duration::from_secs(10));
        let (mut tries, started) = (0, Instant::now());
        let attempt = || {
            tries += 1;
            let work = tokio::time::sleep(if tries < 4 { Duration::ZERO } else { Duration::from_secs(3600) });
            async move { Err::<(), _>(deadline.bound(work).await.map_or("hung", |()| "refused")) }
        };
        let failed = Backoff::default().retry(deadline, |_| true, attempt).await;
        assert_eq!((failed, started.elapsed()), (Err("hung"), Duration::from_secs(10)));
        assert_eq!(Deadline::from_now(Duration::ZERO).bound(std::future::pending::<()>()).await, Err(Duration::ZERO));
    }

    #[test]
    fn pauses_grow_and_stay_bounded() {
        let backoff = Backoff { first: Duration::from_millis(10), most: Duration::from_millis(100) };
        assert!(backoff.pause_before(0) <= Duration::from_millis(10));
        assert!(backoff.pause_before(40) <= Duration::from_millis(100));
        assert!(backoff.pause_before(40) >= Duration::from_millis(50));
    }
}
