//! A table as safetensors: a header with the position of each tensor, then the tensors, filled block by block.
//!
//! Format: <https://github.com/huggingface/safetensors#format>.

use std::borrow::Cow;
use std::io::{self, Seek, SeekFrom, Write};

use serde_json::{Map, Value, json};
use zagros_rows::snapshot::{RowBatch, SlotPart};
use zagros_table::WeightType;
use zagros_zip::ZipEq;

use crate::export::table::{column_bytes, is_scalar, scale_of, tensor_dtype};
use crate::{ExportError, ExportSource, ExportSummary};

/// The length of the header is a multiple of this, so that tensors are aligned.
const ALIGNMENT: usize = 8;

struct TensorPlan<'a> {
    name: &'static str,
    dtype: &'static str,
    shape: Vec<u64>,
    row_bytes: u64,
    content: TensorContent<'a>,
}

enum TensorContent<'a> {
    Ids,
    Part(Cow<'a, SlotPart>),
    Access,
}

pub(crate) fn write(
    source: &ExportSource,
    to: &mut (impl Write + Seek),
    passed: &mut dyn FnMut(u64) -> io::Result<()>,
) -> Result<ExportSummary, ExportError> {
    let expected = source.count_rows()?;
    let tensors = plan_tensors(source, expected);
    let starts = write_header(to, source, &tensors, expected)?;
    let (mut done, mut bytes) = (0, Vec::new());
    source.each_block(|rows, read| {
        passed(read)?;
        for (tensor, start) in tensors.iter().zip_eq(&starts) {
            tensor_bytes(tensor, source.header().width, &rows, &mut bytes);
            to.seek(SeekFrom::Start(start + done * tensor.row_bytes))?;
            to.write_all(&bytes)?;
        }
        done += rows.ids.len() as u64;
        Ok(())
    })?;
    if done != expected {
        let changed = format!(
            "the saved files had {expected} rows and then {done}: another program changed the files during the export; export again"
        );
        return Err(ExportError::Write(io::Error::other(changed)));
    }
    Ok(ExportSummary { rows: done, columns: tensors.iter().map(|tensor| tensor.name.to_owned()).collect() })
}

fn plan_tensors(source: &ExportSource, rows: u64) -> Vec<TensorPlan<'_>> {
    let ids = TensorPlan { name: "ids", dtype: "U64", shape: vec![rows], row_bytes: 8, content: TensorContent::Ids };
    let mark =
        || TensorPlan { name: "mark", dtype: "U32", shape: vec![rows], row_bytes: 4, content: TensorContent::Access };
    let part = |part| {
        let scales = scale_of(part).map(|scales| plan_tensor(Cow::Owned(scales), rows));
        std::iter::once(plan_tensor(Cow::Borrowed(part), rows)).chain(scales)
    };
    let access = source.with_marks.then(mark);
    std::iter::once(ids).chain(source.columns.iter().flat_map(part)).chain(access).collect()
}

fn plan_tensor(part: Cow<'_, SlotPart>, rows: u64) -> TensorPlan<'_> {
    let shape = if is_scalar(&part) { vec![rows] } else { vec![rows, part.values as u64] };
    let row_bytes = (part.values * part.element.weight_bytes()) as u64;
    let (name, dtype) = (part.name, tensor_dtype(part.element));
    TensorPlan { name, dtype, shape, row_bytes, content: TensorContent::Part(part) }
}

/// Writes the header. Returns the position of each tensor in the file.
fn write_header(
    to: &mut impl Write,
    source: &ExportSource,
    tensors: &[TensorPlan<'_>],
    rows: u64,
) -> io::Result<Vec<u64>> {
    let (mut header, mut offset, mut starts) = (Map::new(), 0, Vec::new());
    let reported = source.description().into_iter().map(|(key, value)| (key.to_owned(), Value::String(value)));
    header.insert("__metadata__".to_owned(), Value::Object(reported.collect()));
    for TensorPlan { name, dtype, shape, row_bytes, .. } in tensors {
        let end = offset + rows * row_bytes;
        header.insert((*name).to_owned(), json!({ "dtype": dtype, "shape": shape, "data_offsets": [offset, end] }));
        starts.push(offset);
        offset = end;
    }
    let mut text = serde_json::to_vec(&header)?;
    text.resize(text.len().next_multiple_of(ALIGNMENT), b' ');
    to.write_all(&(text.len() as u64).to_le_bytes())?;
    to.write_all(&text)?;
    let data = size_of::<u64>() as u64 + text.len() as u64;
    Ok(starts.into_iter().map(|start| data + start).collect())
}

fn tensor_bytes(tensor: &TensorPlan<'_>, width: usize, rows: &RowBatch, into: &mut Vec<u8>) {
    match &tensor.content {
        TensorContent::Part(part) => column_bytes(part, width, &rows.slots, into),
        TensorContent::Ids => {
            into.clear();
            into.extend(rows.ids.iter().flat_map(|id| id.to_le_bytes()));
        }
        TensorContent::Access => {
            let whole = SlotPart { name: "mark", element: WeightType::F32, values: 1, words: 0..1 };
            column_bytes(&whole, 1, &rows.access, into);
        }
    }
}
