//! What an embedding server does at its turn: it joins, beats, learns the placement, and copies buckets that come to it.

use zagros_coordinator_core::MemberSlot;
use zagros_protocol::RefusalKind;
use zagros_protocol::control::{
    HeartbeatRequest, JoinRequest, MoveStage, MoveVerdict, ReportMoveRequest, ReportMoveResponse,
};

use super::recorded::join_request;
use super::server::{CopyStage, PushAnswer, PushPart, RunServer, ServerTables, TargetMove};
use super::world::{BEAT, RunWorld};

impl RunWorld {
    pub(crate) fn server_turn(&mut self, index: usize) {
        let Some(process) = self.servers[index].process.as_ref() else { return };
        if process.incarnation == 0 {
            return self.join_server(index);
        }
        if process.next_beat <= self.now {
            return self.beat_of_server(index);
        }
        let is_frozen = process.outgoing.as_ref().is_some_and(|outgoing| outgoing.is_frozen);
        let asks = process.is_outdated || is_frozen;
        let incoming = process.incoming.clone();
        if asks && !self.loses() {
            if let Some(placement) = self.placement() {
                self.servers[index].adopt(index, &placement);
            }
            return;
        }
        if let Some(incoming) = incoming {
            self.copy(index, &incoming);
        }
    }

    fn join_server(&mut self, index: usize) {
        let server = &self.servers[index];
        let instance = server.process.as_ref().map_or(0, |process| process.instance);
        let joins = join_request(MemberSlot::server(index as u32), instance, Vec::new());
        let request = JoinRequest { lineage: server.lineage, recovered: server.is_known, ..joins };
        if let Some(Ok(joined)) = self.ask(&request) {
            let now = self.now;
            if joined.discard {
                // It had handed everything over, and died before it could delete its log.
                self.instances += 1;
                let (server, lineage) = (&mut self.servers[index], self.instances);
                (server.tables, server.is_known, server.lineage) = (ServerTables::default(), false, lineage);
                return;
            }
            let server = &mut self.servers[index];
            server.is_known = true;
            if let Some(process) = &mut server.process {
                (process.member, process.incarnation) = (joined.member, joined.incarnation);
                (process.is_outdated, process.next_beat) = (true, now + BEAT);
            }
        }
    }

    fn beat_of_server(&mut self, index: usize) {
        let Some(process) = self.servers[index].process.as_ref() else { return };
        let (member, incarnation) = (process.member, process.incarnation);
        let request = HeartbeatRequest { member, incarnation, ..HeartbeatRequest::default() };
        let (answer, now) = (self.ask(&request), self.now);
        match answer {
            Some(Ok(answer)) if answer.stop => {
                // It owns nothing any more, or the run is over. The log of a server that left is deleted.
                let is_over = self.coordinator.outcome().is_some();
                if is_over {
                    self.servers[index].process.as_mut().expect("it beats").next_beat = now + BEAT;
                } else {
                    self.servers[index] = RunServer::default();
                }
            }
            Some(Ok(answer)) => {
                let process = self.servers[index].process.as_mut().expect("it beats");
                process.next_beat = now + BEAT;
                let known = process.incoming.as_ref().map(|incoming| incoming.id);
                let known = known.or(process.outgoing.as_ref().map(|outgoing| outgoing.id)).unwrap_or(0);
                process.is_outdated |= answer.generation > process.generation || answer.bucket_move != known;
            }
            Some(Err(refusal)) => {
                assert_eq!(refusal.kind, RefusalKind::Fenced, "{refusal}");
                panic!("{} is fenced, and no server has its rows", MemberSlot::server(index as u32));
            }
            None => {}
        }
    }

    fn copy(&mut self, index: usize, incoming: &TargetMove) {
        match incoming.stage {
            CopyStage::Begin => {
                let buckets = incoming.buckets.clone();
                self.servers[index].tables.purge(|bucket| buckets.contains(&bucket));
                let has_heard = self.report(index, incoming, MoveStage::Copying) == Some(MoveVerdict::Continue);
                if has_heard && !self.loses() && self.source(incoming).begin(incoming.id, &incoming.buckets) {
                    self.go_on(index, CopyStage::Copy);
                }
            }
            CopyStage::Copy => self.copy_bucket(index, incoming),
            CopyStage::CaughtUp => {
                if self.report(index, incoming, MoveStage::CaughtUp) == Some(MoveVerdict::Continue) {
                    self.go_on(index, CopyStage::Freeze);
                }
            }
            CopyStage::Freeze => self.freeze(index, incoming),
            CopyStage::Report => {
                self.report(index, incoming, MoveStage::Copied);
            }
        }
    }

    fn source(&mut self, incoming: &TargetMove) -> &mut RunServer {
        &mut self.servers[incoming.source]
    }

    fn go_on(&mut self, index: usize, stage: CopyStage) {
        if let Some(incoming) = self.servers[index].process.as_mut().and_then(|process| process.incoming.as_mut()) {
            incoming.stage = stage;
        }
    }

    /// Rows of a bucket that were not sent, or have changed since.
    fn copy_bucket(&mut self, index: usize, incoming: &TargetMove) {
        let is_lost = self.loses();
        let source = self.source(incoming);
        let Some(outgoing) = source.outgoing(incoming.id) else {
            // The source is another process, or does not know yet.
            self.report(index, incoming, MoveStage::Copying);
            return;
        };
        let Some(bucket) = outgoing.changed.first().copied() else { return self.go_on(index, CopyStage::CaughtUp) };
        if is_lost {
            return;
        }
        outgoing.changed.remove(&bucket);
        let rows = source.tables.rows.get(&bucket).cloned().unwrap_or_default();
        self.servers[index].tables.rows.insert(bucket, rows);
    }

    /// The source serves no more. Its last rows and its windows are taken over.
    fn freeze(&mut self, index: usize, incoming: &TargetMove) {
        let (is_lost, is_answer_lost) = (self.loses(), self.loses());
        let source = self.source(incoming);
        if is_lost {
            return;
        }
        let is_half = !source.tables.partial.is_empty();
        let Some(outgoing) = source.outgoing(incoming.id) else {
            self.report(index, incoming, MoveStage::CaughtUp);
            return;
        };
        if is_half {
            // Its repetition would find a part of its rows here, and the rest at the target.
            return;
        }
        outgoing.is_frozen = true;
        let changed = outgoing.changed.clone();
        if is_answer_lost {
            return;
        }
        let (groups, rows) = (source.tables.groups_of(&incoming.buckets), source.tables.rows.clone());
        let target = &mut self.servers[index].tables;
        for bucket in changed {
            target.rows.insert(bucket, rows.get(&bucket).cloned().unwrap_or_default());
        }
        target.groups.extend(groups);
        self.go_on(index, CopyStage::Report);
    }

    fn report(&mut self, index: usize, incoming: &TargetMove, stage: MoveStage) -> Option<MoveVerdict> {
        let process = self.servers[index].process.as_ref()?;
        let request = ReportMoveRequest {
            member: process.member,
            incarnation: process.incarnation,
            bucket_move: incoming.id,
            stage: stage.into(),
            rows: 1,
            ..ReportMoveRequest::default()
        };
        let ReportMoveResponse { verdict, .. } = self.ask(&request)?.ok()?;
        let verdict = MoveVerdict::try_from(verdict).expect("a verdict");
        if verdict != MoveVerdict::Continue {
            if verdict == MoveVerdict::Committed {
                self.note("move");
            } else if verdict == MoveVerdict::Abandoned {
                let buckets = incoming.buckets.clone();
                self.servers[index].tables.purge(|bucket| buckets.contains(&bucket));
            }
            self.servers[index].end_move(incoming.id);
        }
        Some(verdict)
    }

    /// A push reaches a server, which may die of it.
    pub(crate) fn push_to(&mut self, server: usize, part: &PushPart) -> PushAnswer {
        let dies_after = if self.may_die_half_way() { Some(self.dice.below(4)) } else { None };
        let had = self.servers[server].tables.rows.values().flatten().filter(|id| **id == part.id).count();
        let answer = self.servers[server].push(server, part, dies_after);
        if answer == PushAnswer::Acknowledged && had > 0 {
            self.note("duplicate");
        }
        if answer == PushAnswer::Died {
            self.died_half_way(server);
        }
        answer
    }
}
