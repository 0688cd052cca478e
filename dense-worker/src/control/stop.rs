//! Whatever ends training before its data does.

use tokio::sync::watch;
use zagros_coordinator_client::MemberView;
use zagros_plumbing::Shutdown;

use crate::error::WorkerError;

/// Listens to the process's shutdown and to the coordinator.
#[derive(Clone, Debug)]
pub(crate) struct Stop {
    shutdown: Shutdown,
    view: watch::Receiver<MemberView>,
}

impl Stop {
    pub(crate) fn new(shutdown: Shutdown, view: watch::Receiver<MemberView>) -> Self {
        Self { shutdown, view }
    }

    /// Listens to shutdown alone.
    pub(crate) fn alone(shutdown: Shutdown) -> Self {
        let (_, view) = watch::channel(MemberView::default());
        Self { shutdown, view }
    }

    /// Of this process.
    pub(crate) fn shutdown(&self) -> &Shutdown {
        &self.shutdown
    }

    /// Resolves once training must end, with why: [`WorkerError::Interrupted`] asks to finish tidily, anything
    /// else is a failure. A coordinator that is merely silent is no reason: the data path works without it.
    pub(crate) async fn requested(&mut self) -> WorkerError {
        tokio::select! {
            biased;
            () = self.shutdown.requested() => WorkerError::Interrupted,
            reason = told(&mut self.view) => reason,
        }
    }
}

async fn told(view: &mut watch::Receiver<MemberView>) -> WorkerError {
    let must_stop = |view: &MemberView| view.stop.is_some() || view.fenced.is_some();
    let told = view.wait_for(must_stop).await.map(|view| reason(&view));
    match told {
        Ok(reason) => reason,
        // The membership is gone, so nobody will tell.
        Err(_) => std::future::pending().await,
    }
}

fn reason(view: &MemberView) -> WorkerError {
    if let Some(reason) = &view.fenced {
        return WorkerError::Fenced { reason: reason.clone() };
    }
    WorkerError::Stopped { reason: view.stop.clone().unwrap_or_default() }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::*;

    #[tokio::test]
    async fn silence_is_no_reason_to_stop_but_an_order_is() {
        let (tell, view) = watch::channel(MemberView { lost: Some("silent".to_owned()), ..MemberView::default() });
        let mut stop = Stop::new(Shutdown::new(), view);
        assert!(stop.requested().now_or_never().is_none());
        tell.send_modify(|view| view.stop = Some("run failed".to_owned()));
        assert!(matches!(stop.requested().await, WorkerError::Stopped { reason } if reason == "run failed"));
        tell.send_modify(|view| view.fenced = Some("replaced".to_owned()));
        assert!(matches!(stop.requested().await, WorkerError::Fenced { reason } if reason == "replaced"));
    }

    #[tokio::test]
    async fn shutdown_comes_first() {
        let shutdown = Shutdown::new();
        let mut stop = Stop::alone(shutdown.clone());
        assert!(stop.requested().now_or_never().is_none());
        shutdown.request();
        assert!(matches!(stop.requested().await, WorkerError::Interrupted));
    }
}
