//! Exported files are read back by the formats' own crates.

use std::fs;
use std::path::{Path, PathBuf};

use ::parquet::file::reader::{FileReader, SerializedFileReader};
use ::parquet::record::{Field, Row, RowAccessor};
use ::safetensors::{Dtype, SafeTensors};
use zagros_rows::snapshot::{RowBatch, SavedFile, SnapshotError, SnapshotHeader, SnapshotWriter, TableHeader};

use super::*;

const USER: &str = "user";

fn table(name: &str, dim: usize, element: &str, width: usize, state: &str, access: bool) -> TableHeader {
    let [name, element, state] = [name, element, state].map(str::to_owned);
    let access = access.then(|| "steps".to_owned());
    TableHeader { name, dim, element, width, state, access, ..TableHeader::default() }
}

fn file(folder: &Path, server: u32, table: &TableHeader, rows: &RowBatch) -> PathBuf {
    let header =
        SnapshotHeader { buckets: 8, servers: 2, server, tables: vec![table.clone()], ..SnapshotHeader::default() };
    let mut bytes = Vec::new();
    let mut writer = SnapshotWriter::start(&mut bytes, header).unwrap();
    writer.write_rows(0, rows).unwrap();
    writer.finish().unwrap();
    let path = folder.join(zagros_rows::snapshot::file_name(server, 2));
    fs::write(&path, bytes).unwrap();
    path
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

/// Two files with a table of dim 2 with row-wise Adagrad and access metadata.
fn adagrad(folder: &Path) -> Vec<PathBuf> {
    let table = table(USER, 2, "f32", 3, "adagrad-row", true);
    let first = RowBatch { ids: vec![7], slots: bits(&[0.5, -1.5, 9.0]), access: vec![40] };
    let second = RowBatch { ids: vec![u64::MAX], slots: bits(&[0.25, 2.0, 8.0]), access: vec![u32::MAX] };
    vec![file(folder, 0, &table, &first), file(folder, 1, &table, &second)]
}

fn saved(files: &[PathBuf]) -> Vec<SavedFile> {
    files.iter().map(SavedFile::on_disk).collect()
}

fn exported(files: &[PathBuf], to: &Path, with_state: bool) -> ExportSummary {
    let source = ExportSource::new(&saved(files), USER, with_state).unwrap();
    export_table(&source, to, false, |_| Ok(())).unwrap()
}

fn parquet_reader(path: &Path) -> SerializedFileReader<File> {
    SerializedFileReader::new(File::open(path).unwrap()).unwrap()
}

fn parquet_rows(path: &Path) -> Vec<Row> {
    parquet_reader(path).get_row_iter(None).unwrap().map(|row| row.unwrap()).collect()
}

/// Each row's list in the second column.
fn parquet_weights(path: &Path) -> Vec<Vec<f32>> {
    parquet_rows(path).iter().map(|row| floats(row.get_column_iter().nth(1).unwrap().1)).collect()
}

fn floats(field: &Field) -> Vec<f32> {
    let Field::ListInternal(list) = field else { panic!("{field:?}") };
    let float = |field: &Field| if let Field::Float(value) = field { *value } else { panic!("{field:?}") };
    list.elements().iter().map(float).collect()
}

#[test]
fn parquet_has_ids_lists_state_and_access_metadata() {
    let folder = tempfile::tempdir().unwrap();
    let target = folder.path().join("user.parquet");
    let done = exported(&adagrad(folder.path()), &target, true);
    let columns = ["id", "weights", "sum_of_squares", "mark"].map(str::to_owned).into();
    assert_eq!(done, ExportSummary { rows: 2, columns });
    let reader = parquet_reader(&target);
    let reported = reader.metadata().file_metadata().key_value_metadata().unwrap();
    assert!(reported.iter().any(|pair| pair.key == "zagros.table" && pair.value.as_deref() == Some(USER)));
    let rows = parquet_rows(&target);
    assert_eq!([rows[0].get_ulong(0).unwrap(), rows[1].get_ulong(0).unwrap()], [7, u64::MAX]);
    assert_eq!(parquet_weights(&target), [[0.5, -1.5], [0.25, 2.0]]);
    assert_eq!([rows[0].get_float(2).unwrap(), rows[1].get_float(2).unwrap()], [9.0, 8.0]);
    assert_eq!([rows[0].get_uint(3).unwrap(), rows[1].get_uint(3).unwrap()], [40, u32::MAX]);
}

#[test]
fn safetensors_have_ids_weights_state_and_access_metadata() {
    let folder = tempfile::tempdir().unwrap();
    let target = folder.path().join("user.safetensors");
    assert_eq!(exported(&adagrad(folder.path()), &target, true).columns, ["ids", "weights", "sum_of_squares", "mark"]);
    let bytes = fs::read(&target).unwrap();
    let tensors = SafeTensors::deserialize(&bytes).unwrap();
    let tensor = |name: &str| tensors.tensor(name).unwrap();
    assert_eq!((tensor("ids").dtype(), tensor("ids").shape()), (Dtype::U64, &[2][..]));
    assert_eq!(tensor("ids").data(), [7_u64, u64::MAX].map(u64::to_le_bytes).concat());
    assert_eq!((tensor("weights").dtype(), tensor("weights").shape()), (Dtype::F32, &[2, 2][..]));
    assert_eq!(tensor("weights").data(), [0.5_f32, -1.5, 0.25, 2.0].map(f32::to_le_bytes).concat());
    assert_eq!((tensor("sum_of_squares").shape(), tensor("mark").dtype()), (&[2][..], Dtype::U32));
    assert_eq!(tensor("sum_of_squares").data(), [9.0_f32, 8.0].map(f32::to_le_bytes).concat());
    assert_eq!(tensor("mark").data(), [40, u32::MAX].map(u32::to_le_bytes).concat());
    let (_, metadata) = SafeTensors::read_metadata(&bytes).unwrap();
    assert_eq!(metadata.metadata().as_ref().unwrap()["optimizer_state"], "adagrad-row");
}

#[test]
fn weights_alone_are_the_default_and_narrow_ones_stay_narrow_where_they_can() {
    let folder = tempfile::tempdir().unwrap();
    let table = table(USER, 3, "bf16", 3, "adagrad-row", false);
    // The numbers 1.0, -2.0 and 0.5 in bfloat16, two per word, then state.
    let rows = RowBatch { ids: vec![1], slots: vec![0xc000_3f80, 0x0000_3f00, 0x4080_0000], access: vec![] };
    let files = [file(folder.path(), 0, &table, &rows)];
    let target = folder.path().join("user.safetensors");
    assert_eq!(exported(&files, &target, false).columns, ["ids", "weights"]);
    let bytes = fs::read(&target).unwrap();
    let weights = SafeTensors::deserialize(&bytes).unwrap();
    let weights = weights.tensor("weights").unwrap();
    assert_eq!((weights.dtype(), weights.shape()), (Dtype::BF16, &[1, 3][..]));
    assert_eq!(weights.data(), [0x80, 0x3f, 0x00, 0xc0, 0x00, 0x3f]);
    let target = folder.path().join("user.parquet");
    assert_eq!(exported(&files, &target, false).columns, ["id", "weights"]);
    assert_eq!(parquet_weights(&target), [[1.0, -2.0, 0.5]]);
}

#[test]
fn weights_of_a_byte_come_with_their_scales() {
    let folder = tempfile::tempdir().unwrap();
    let table = table(USER, 5, "int8", 4, "adagrad-row", false);
    // Scale 0.5, then the codes −127, −1, 2, 127, 4, then state; and a row of scale 2.
    let slots = [0.5_f32.to_bits(), 0x7f02_ff81, 0x0000_0004, 9.0_f32.to_bits()];
    let rows = RowBatch { ids: vec![1, 2], slots: [slots, [2.0_f32.to_bits(), 1, 0, 0]].concat(), access: vec![] };
    let files = [file(folder.path(), 0, &table, &rows)];
    let target = folder.path().join("user.safetensors");
    assert_eq!(exported(&files, &target, true).columns, ["ids", "weights", "scales", "sum_of_squares"]);
    let bytes = fs::read(&target).unwrap();
    let tensors = SafeTensors::deserialize(&bytes).unwrap();
    let (weights, scales) = (tensors.tensor("weights").unwrap(), tensors.tensor("scales").unwrap());
    assert_eq!((weights.dtype(), weights.shape()), (Dtype::I8, &[2, 5][..]));
    assert_eq!(weights.data(), [-127_i8, -1, 2, 127, 4, 1, 0, 0, 0, 0].map(i8::cast_unsigned));
    assert_eq!((scales.dtype(), scales.shape()), (Dtype::F32, &[2][..]));
    assert_eq!(scales.data(), [0.5_f32, 2.0].map(f32::to_le_bytes).concat());
    assert_eq!(tensors.tensor("sum_of_squares").unwrap().data(), [9.0_f32, 0.0].map(f32::to_le_bytes).concat());
    let target = folder.path().join("user.parquet");
    assert_eq!(exported(&files, &target, false).columns, ["id", "weights"]);
    assert_eq!(parquet_weights(&target), [[-63.5, -0.5, 1.0, 63.5, 2.0], [2.0, 0.0, 0.0, 0.0, 0.0]]);
}

#[test]
fn a_table_without_rows_is_a_file_without_rows() {
    let folder = tempfile::tempdir().unwrap();
    let files = [file(folder.path(), 0, &table(USER, 2, "f32", 2, "sgd", false), &RowBatch::default())];
    for name in ["none.parquet", "none.safetensors"] {
        assert_eq!(exported(&files, &folder.path().join(name), true).rows, 0);
    }
    let bytes = fs::read(folder.path().join("none.safetensors")).unwrap();
    assert_eq!(SafeTensors::deserialize(&bytes).unwrap().tensor("weights").unwrap().shape(), [0, 2]);
    assert!(parquet_rows(&folder.path().join("none.parquet")).is_empty());
}

/// Invariant CK-1.
#[test]
fn a_failed_export_leaves_no_file() {
    let folder = tempfile::tempdir().unwrap();
    let files = adagrad(folder.path());
    let mut bytes = fs::read(&files[1]).unwrap();
    let middle = bytes.len() - 60;
    bytes[middle] ^= 1;
    fs::write(&files[1], bytes).unwrap();
    let source = ExportSource::new(&saved(&files), USER, true).unwrap();
    for name in ["user.parquet", "user.safetensors"] {
        let error = export_table(&source, &folder.path().join(name), false, |_| Ok(())).unwrap_err();
        assert!(matches!(error, ExportError::Snapshot(SnapshotError::Corrupt { .. })), "{error}");
    }
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 2);
}

#[test]
fn no_file_is_replaced_without_force_and_no_format_is_guessed() {
    let folder = tempfile::tempdir().unwrap();
    let source = ExportSource::new(&saved(&adagrad(folder.path())), USER, false).unwrap();
    let target = folder.path().join("user.parquet");
    fs::write(&target, "mine").unwrap();
    for (name, expected) in [
        ("user.parquet", ["exists and is kept", "--force"]),
        ("user.csv", ["end the name in", ".parquet or .safetensors"]),
        ("none/user.parquet", ["cannot write", "none/user.parquet"]),
    ] {
        let error = export_table(&source, &folder.path().join(name), false, |_| Ok(())).unwrap_err().to_string();
        assert!(expected.iter().all(|part| error.contains(part)), "{error}");
    }
    assert_eq!(fs::read(&target).unwrap(), b"mine");
    assert_eq!(export_table(&source, &target, true, |_| Ok(())).unwrap().rows, 2);
}

#[test]
fn files_of_two_models_do_not_mix() {
    let folder = tempfile::tempdir().unwrap();
    let rows = RowBatch { ids: vec![1], slots: bits(&[1.0, 2.0]), access: vec![] };
    let mut files = vec![file(folder.path(), 0, &table(USER, 2, "f32", 2, "sgd", false), &rows)];
    files.push(file(folder.path(), 1, &table(USER, 1, "f32", 2, "momentum", false), &rows));
    let error = ExportSource::new(&saved(&files), USER, false).unwrap_err().to_string();
    assert!(error.contains("table `user` in") && error.contains("dim 1 of f32, 2 words of momentum"), "{error}");
    let error = ExportSource::new(&saved(&files), "users", false).unwrap_err().to_string();
    assert!(error.contains("has no table `users`; its tables are user"), "{error}");
}
