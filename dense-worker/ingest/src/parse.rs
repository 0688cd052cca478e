//! From blocks to rows.

pub(crate) mod bad;
mod cells;
pub(crate) mod fields;
pub(crate) mod hold_out;
pub(crate) mod json;
pub(crate) mod label;
pub(crate) mod number;
pub(crate) mod row;
pub(crate) mod sink;
pub(crate) mod values;

use std::sync::Arc;

use zagros_job::Job;

use crate::columnar::parser::ColumnarParser;
use crate::parse::bad::ParseOutcome;
use crate::parse::row::RowParser;
use crate::parse::sink::RowSink;
use crate::read::layout::FileLayout;
use crate::read::reader::BlockBody;
use crate::{DataPart, IngestError};

/// Parses the rows of a job. Each thread has its own parser.
#[derive(Debug)]
pub(crate) struct BlockParser {
    lines: RowParser,
    columns: ColumnarParser,
}

impl BlockParser {
    pub(crate) fn new(job: &Arc<Job>, part: DataPart) -> Self {
        Self { lines: RowParser::new(job, part), columns: ColumnarParser::new(job, part) }
    }

    pub(crate) fn parse<S: RowSink>(
        &mut self,
        layout: &Arc<FileLayout>,
        content: &BlockBody,
        sink: &mut S,
    ) -> Result<ParseOutcome, IngestError> {
        match (content, &layout.row_groups) {
            (BlockBody::Slice(slice), Some(row_groups)) => self.columns.parse(layout, row_groups, *slice, sink),
            (BlockBody::Slice(_), None) => unreachable!("only a file with row groups has slices of them"),
            (BlockBody::Lines(lines), _) => Ok(self.lines.parse((&lines.text, lines.offset), &layout.positions, sink)),
        }
    }
}
