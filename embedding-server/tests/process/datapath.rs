//! What a worker sees: the generated client against a server behind a socket.

use tonic::transport::Channel;
use zagros_protocol::datapath::embedding_client::EmbeddingClient;
use zagros_protocol::datapath::{Access, Encoding, LookupRequest, PushRequest};
use zagros_protocol::packed::{decode_values, encode_ids, encode_values};
use zagros_protocol::{Refusal, RefusalKind, Segment, Segments, TableId};

use crate::fake::{FakeCoordinator, Process};

const IDS: [u64; 3] = [7, 8, u64::MAX];

fn lookup() -> LookupRequest {
    LookupRequest {
        generation: 4,
        segments: Segments::new(vec![Segment { table: TableId(0), rows: 3, dim: 2 }]).pack().into(),
        ids: encode_ids(&IDS).into(),
        access: Access::Train as i32,
        encoding: Encoding::F32 as i32,
        ..LookupRequest::default()
    }
}

fn push(seq: u64) -> PushRequest {
    let LookupRequest { generation, segments, ids, encoding, bags, .. } = lookup();
    let gradients = encode_values(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0], encoding).unwrap().into();
    PushRequest {
        generation,
        writer: 3,
        epoch: 1,
        seq,
        segments,
        ids,
        gradients,
        encoding,
        bags,
        staleness: 2,
        share: None,
    }
}

async fn rows(client: &mut EmbeddingClient<Channel>) -> Vec<f32> {
    let answer = client.lookup(lookup()).await.unwrap().into_inner();
    let mut rows = vec![f32::NAN; 6];
    decode_values(&answer.rows, answer.encoding, &mut rows).unwrap();
    rows
}

async fn refused(client: &mut EmbeddingClient<Channel>, request: PushRequest) -> Refusal {
    Refusal::from(client.push(request).await.unwrap_err())
}

#[tokio::test]
async fn rows_are_looked_up_pushed_once_and_looked_up_again() {
    let process = Process::ready(FakeCoordinator::placed(4)).await;
    let mut client = process.client();
    let first = rows(&mut client).await;
    assert!(first.iter().all(|value| value.is_finite() && *value != 0.0), "{first:?}");
    assert!(!client.push(push(1)).await.unwrap().into_inner().duplicate);
    assert!(client.push(push(1)).await.unwrap().into_inner().duplicate);
    let pushed = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0];
    let expected: Vec<f32> = first.iter().zip(pushed).map(|(value, gradient)| value - gradient).collect();
    assert_eq!(rows(&mut client).await, expected);
}

#[tokio::test]
async fn a_scrape_tells_of_requests_tables_and_staleness() {
    let process = Process::ready(FakeCoordinator::placed(4)).await;
    let mut client = process.client();
    rows(&mut client).await;
    client.push(push(1)).await.unwrap();
    let text = process.get("/metrics").await;
    for line in [
        r#"zagros_embedding_table_rows{server="0",table="item"} 3"#,
        r#"zagros_embedding_table_ids_total{server="0",table="item",what="dropped"} 0"#,
        r#"zagros_embedding_table_lock_wait_seconds_total{server="0",table="item"} 0"#,
        r#"zagros_embedding_request_seconds_count{call="lookup",server="0"} 1"#,
        r#"zagros_embedding_request_rows_sum{call="push",server="0"} 3"#,
        r#"zagros_embedding_push_staleness_batches_sum{server="0"} 2"#,
    ] {
        assert!(text.contains(line), "{line} is not in\n{text}");
    }
}

#[tokio::test]
async fn what_is_refused_is_named_and_not_applied() {
    let process = Process::ready(FakeCoordinator::placed(4)).await;
    let mut client = process.client();
    let first = rows(&mut client).await;
    let segment = |table, rows, dim| Segments::new(vec![Segment { table: TableId(table), rows, dim }]).pack().into();
    let good = push(1);
    let cases = [
        (PushRequest { generation: 3, ..good.clone() }, RefusalKind::Moved, "generation 3, this server has 4"),
        (PushRequest { segments: segment(0, 3, 4), ..good.clone() }, RefusalKind::Invalid, "table `item`"),
        (PushRequest { segments: segment(5, 3, 2), ..good.clone() }, RefusalKind::Invalid, "no table 5"),
        (
            PushRequest { segments: segment(0, 2, 2), ..good.clone() },
            RefusalKind::Invalid,
            "expected 16 bytes, found 24",
        ),
        (PushRequest { gradients: good.gradients.slice(8..), ..good.clone() }, RefusalKind::Invalid, "gradients"),
        (PushRequest { encoding: Encoding::F16 as i32, ..good.clone() }, RefusalKind::Invalid, "gradients"),
    ];
    for (request, kind, words) in cases {
        let refusal = refused(&mut client, request).await;
        assert_eq!(refusal.kind, kind, "{refusal}");
        assert!(refusal.message.contains(words), "{refusal}");
    }
    assert_eq!(rows(&mut client).await, first);
    // None of the refused ones used up the number.
    assert!(!client.push(good).await.unwrap().into_inner().duplicate);
    let old = PushRequest { epoch: 0, ..push(2) };
    assert_eq!(refused(&mut client, old).await.kind, RefusalKind::Fenced);
}
