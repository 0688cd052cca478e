//! The last load of a server.

use futures::future::{BoxFuture, Shared};
use parking_lot::Mutex;
use zagros_protocol::Refusal;
use zagros_protocol::control::LoadResponse;

/// Resolves when the rows are loaded.
pub(super) type LoadAnswer = Shared<BoxFuture<'static, Result<LoadResponse, Refusal>>>;

/// The number of the last load, and its answer.
#[derive(Debug, Default)]
pub(crate) struct LastLoad(pub(super) Mutex<Option<(u64, LoadAnswer)>>);
