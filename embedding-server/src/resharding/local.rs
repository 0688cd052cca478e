//! The parts of a server in a move, called without gRPC.

use std::sync::Arc;

use zagros_protocol::control::{
    BeginMoveRequest, FreezeMoveRequest, FreezeMoveResponse, MoveRowsRequest, MoveRowsResponse, PlacementResponse,
};
use zagros_protocol::{PackError, Refusal};

use super::incoming_rows::{put_chunk, put_windows};
use super::{PlannedMove, adopt_placement, begin_copy, freeze_source, next_rows};
use crate::EmbeddingService;

/// A server and the move that a placement announces to it.
pub struct LocalMove {
    service: Arc<EmbeddingService>,
    incoming: Option<Arc<PlannedMove>>,
}

impl LocalMove {
    pub fn from_placement(service: Arc<EmbeddingService>, placement: &PlacementResponse) -> Result<Self, PackError> {
        let incoming = adopt_placement(&service, placement)?.and_then(|adopted| adopted.incoming).map(|(plan, _)| plan);
        Ok(Self { service, incoming })
    }

    pub fn begin_copy(&self, request: &BeginMoveRequest) -> Result<(), Refusal> {
        begin_copy(&self.service, request.bucket_move).map(|_| ())
    }

    /// The next rows, at the source.
    pub fn next_rows(&self, request: &MoveRowsRequest) -> Result<MoveRowsResponse, Refusal> {
        next_rows(&self.service, request.bucket_move, request.number)
    }

    pub fn freeze_source(&self, request: &FreezeMoveRequest) -> Result<FreezeMoveResponse, Refusal> {
        freeze_source(&self.service, request.bucket_move)
    }

    /// Puts in what the source sent, at the target.
    pub fn put_rows(&self, sent: &MoveRowsResponse) -> Result<(), Refusal> {
        put_chunk(&self.service, self.incoming_move()?, sent)
    }

    /// Puts in the pushes that the source has applied, at the target.
    pub fn put_windows(&self, sent: &FreezeMoveResponse) -> Result<(), Refusal> {
        put_windows(&self.service, self.incoming_move()?, &sent.groups)
    }

    fn incoming_move(&self) -> Result<&Arc<PlannedMove>, Refusal> {
        self.incoming.as_ref().ok_or_else(|| Refusal::invalid("no rows come to this server"))
    }
}
