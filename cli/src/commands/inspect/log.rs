//! What the log of an embedding server holds.

use std::fmt::Write as _;
use std::path::Path;

use indicatif::{HumanBytes, HumanCount};
use serde_json::json;
use zagros_rows::log::{LogError, LogSummary};
use zagros_shell::{Exit, Failure, out, print_report};

/// Reads the whole log and checks it. A server may write to it meanwhile.
pub(super) fn show(folder: &Path, json: bool) -> Result<Exit, Failure> {
    let summary = LogSummary::read(folder).map_err(|error| failed(folder, error))?;
    if summary.lineage.is_none() {
        let help = "name the folder of one server, such as runs/log-server-0";
        return Err(Failure::with_help(Exit::Data, format!("{} holds no log", folder.display()), help));
    }
    print_report(&as_json(&summary), json, |_| out!("{}", describe(&summary).trim_end()))
}

fn failed(folder: &Path, error: LogError) -> Failure {
    match &error {
        LogError::Io { .. } => {
            let help = "name the folder of one server, such as runs/log-server-0";
            Failure::with_help(Exit::Data, format!("{}: {error}", folder.display()), help)
        }
        LogError::InUse { .. }
        | LogError::Missing { .. }
        | LogError::OtherVersion { .. }
        | LogError::Damaged { .. } => Failure::from_error(Exit::Data, error),
    }
}

fn describe(summary: &LogSummary) -> String {
    let LogSummary { lineage, base, segments, first, end, torn, records, writers, rows, partial } = summary;
    let mut text = String::new();
    let mut line = |what: &str, value: String| _ = writeln!(text, "{what:<16} {value}");
    if let Some(lineage) = lineage {
        line("lineage", format!("{:016x}", lineage.lineage));
    }
    match base {
        Some(base) => {
            let (rows, bytes) = (HumanCount(base.rows), HumanBytes(base.bytes));
            line("base", format!("lsn {}, {rows} rows, {bytes}", base.start));
        }
        None => line("base", "none".to_owned()),
    }
    line("tail", format!("lsn {first} to {end}, {} in {segments} segments", HumanBytes(end - first)));
    if *torn > 0 {
        line("torn", format!("{torn} bytes of a record that was being written; they are no part of the log"));
    }
    for (kind, count) in records {
        line(kind.name(), format!("{} records, {}", HumanCount(count.records), HumanBytes(count.bytes)));
    }
    for (table, count) in rows {
        line(&format!("table {table}"), format!("{} rows changed, each as often as it did", HumanCount(*count)));
    }
    for ((writer, incarnation), of) in writers {
        let pushes = HumanCount(of.pushes);
        line(
            &format!("writer {writer}"),
            format!("incarnation {incarnation}: {pushes} pushes, the newest is number {}, step {}", of.newest, of.step),
        );
    }
    if *partial > 0 {
        line(
            "not whole",
            format!("{partial} pushes whose end is missing; their retries are applied to the rows that lack them"),
        );
    }
    text
}

fn as_json(summary: &LogSummary) -> serde_json::Value {
    let LogSummary { lineage, base, segments, first, end, torn, records, writers, rows, partial } = summary;
    let records: serde_json::Map<_, _> = records
        .iter()
        .map(|(kind, count)| (kind.name().to_owned(), json!({ "records": count.records, "bytes": count.bytes })))
        .collect();
    let writers: Vec<_> = writers
        .iter()
        .map(|((writer, incarnation), of)| {
            json!({
                "writer": writer,
                "incarnation": incarnation,
                "pushes": of.pushes,
                "newest": of.newest,
                "step": of.step,
            })
        })
        .collect();
    json!({
        "lineage": lineage.as_ref().map(|lineage| format!("{:016x}", lineage.lineage)),
        "base": base,
        "first": first,
        "end": end,
        "torn_bytes": torn,
        "segments": segments,
        "records": records,
        "rows": rows.iter().map(|(table, count)| (table.to_string(), json!(count))).collect::<serde_json::Map<_, _>>(),
        "writers": writers,
        "partial_pushes": partial,
    })
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use zagros_rows::log::{
        LineageFile, LogFolder, LogPlace, LogWriter, SEGMENT_BYTES, SyncMode, SystemDisk, WriterConfig,
    };
    use zagros_table::{ChangeKind, PushOrigin, StripeChange, TableTime, UpdateLog};

    use super::*;

    #[test]
    fn a_log_is_described_by_what_is_in_it() {
        let folder = std::env::temp_dir().join(format!("zagros-inspect-log-{}", std::process::id()));
        let held = LogFolder::open(&folder).unwrap();
        let lineage = LineageFile {
            version: zagros_rows::log::format::VERSION,
            log: 3,
            lineage: 255,
            tables: Vec::new(),
            cold: false,
            place: LogPlace::Disk,
        };
        held.begin_log(&lineage).unwrap();
        let config = WriterConfig { mode: SyncMode::Process, lineage: 3, segment_bytes: SEGMENT_BYTES, next: 0 };
        let log = LogWriter::open(&folder, Arc::new(SystemDisk), &config).unwrap();
        let origin = PushOrigin { writer: 4, incarnation: 2, seq: 17 };
        let kind = ChangeKind::Rows { ids: &[1, 2], slots: &[5, 6, 7, 8], access: &[] };
        log.append(&StripeChange { table: 1, stripe: 0, origin: Some(&origin), kind });
        log.append_commit(&origin, 21, TableTime::default(), &[]);
        log.append(&StripeChange { table: 1, stripe: 0, origin: Some(&PushOrigin { seq: 18, ..origin }), kind });
        log.flush_appended().unwrap();
        let summary = LogSummary::read(&folder).unwrap();
        let text = describe(&summary);
        for expected in [
            "lineage          00000000000000ff",
            "base             none",
            "pushed rows      2 records",
            "table 1          4 rows changed",
            "writer 4         incarnation 2: 1 pushes, the newest is number 17, step 21",
            "not whole        1 pushes",
        ] {
            assert!(text.contains(expected), "{expected} is not in\n{text}");
        }
        assert_eq!(as_json(&summary)["writers"][0]["newest"], 17);
        drop(held);
        std::fs::remove_dir_all(&folder).unwrap();
        assert!(show(&folder, false).is_err());
    }
}
