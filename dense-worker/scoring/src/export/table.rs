//! One table across the files of a save.

use zagros_rows::snapshot::{
    BlockContent, BlockHeader, BlockKind, FileChain, RowBatch, SavedFile, SlotPart, TableHeader, slot_parts,
};
use zagros_table::WeightType;

use crate::ExportError;

/// A table of a save, and the columns to export.
#[derive(Clone, Debug)]
pub struct ExportSource {
    chains: Vec<FileChain>,
    header: TableHeader,
    /// The exported parts of a slot, weights first.
    pub(crate) columns: Vec<SlotPart>,
    /// Whether access metadata is exported and present.
    pub(crate) with_marks: bool,
}

impl ExportSource {
    /// The table `name` of these files: its weights alone, or all parts of its rows.
    pub fn new(files: &[SavedFile], name: &str, with_state: bool) -> Result<Self, ExportError> {
        let mut header: Option<TableHeader> = None;
        for file in files {
            let found = file.open()?.find_table(name)?.1.clone();
            let problem = header.as_ref().and_then(|first| find_difference(first, &found));
            if let Some(problem) = problem {
                return Err(ExportError::Differs { path: file.path().to_owned(), table: name.to_owned(), problem });
            }
            header = header.or(Some(found));
        }
        let header = header.unwrap_or_default();
        let mut columns = slot_parts(&header);
        columns.truncate(if with_state { columns.len() } else { 1 });
        let with_marks = with_state && header.access.is_some();
        Ok(Self { chains: FileChain::group_files(files, |_| None)?, header, columns, with_marks })
    }

    pub fn header(&self) -> &TableHeader {
        &self.header
    }

    pub(crate) fn column_names(&self) -> Vec<String> {
        let columns = self.columns.iter().map(|column| column.name);
        std::iter::once("id").chain(columns).chain(self.with_marks.then_some("mark")).map(str::to_owned).collect()
    }

    /// The description of the table for other programs, as pairs of text.
    pub(crate) fn description(&self) -> Vec<(&'static str, String)> {
        let TableHeader { name, dim, element, state, .. } = &self.header;
        let reported = [("table", name.clone()), ("dim", dim.to_string()), ("element", element.clone())];
        reported.into_iter().chain([("optimizer_state", state.clone())]).collect()
    }

    pub(crate) fn count_rows(&self) -> Result<u64, ExportError> {
        let mut rows = 0;
        for chain in &self.chains {
            rows += chain.count_rows(self.own_blocks(chain)?)?;
        }
        Ok(rows)
    }

    /// Tells the blocks of the table. The files of a chain have the same tables.
    fn own_blocks(&self, chain: &FileChain) -> Result<impl Fn(&BlockHeader) -> bool + use<>, ExportError> {
        let first = chain.files().first().map(SavedFile::open).transpose()?;
        let table = first.and_then(|first| first.find_table(&self.header.name).ok().map(|(number, _)| number));
        Ok(move |head: &BlockHeader| head.kind == BlockKind::Rows && Some(head.table as usize) == table)
    }

    /// Passes each block on, with the number of bytes of the files that were read for it.
    pub(crate) fn each_block(
        &self,
        mut take: impl FnMut(RowBatch, u64) -> Result<(), ExportError>,
    ) -> Result<(), ExportError> {
        self.chains.iter().try_for_each(|chain| self.each_block_of(chain, &mut take))
    }

    fn each_block_of(
        &self,
        chain: &FileChain,
        take: &mut dyn FnMut(RowBatch, u64) -> Result<(), ExportError>,
    ) -> Result<(), ExportError> {
        let mut last_position = 0;
        chain.each_block(self.own_blocks(chain)?, |block, reader| {
            let BlockContent::Rows(rows) = block.content else { return Ok(()) };
            // The position starts again with each file.
            let read = reader.bytes_read().checked_sub(last_position).unwrap_or(reader.bytes_read());
            last_position = reader.bytes_read();
            take(rows, read)
        })
    }
}

/// The bytes of one part of every slot, row after row, little-endian, without scale and padding.
pub(crate) fn column_bytes(column: &SlotPart, width: usize, slots: &[u32], into: &mut Vec<u8>) {
    into.clear();
    let bytes = column.values * column.element.weight_bytes();
    for slot in slots.chunks_exact(width) {
        let (start, words) = (into.len(), &slot[column.words.clone()]);
        into.extend(words[column.element.scale_words()..].iter().flat_map(|word| word.to_le_bytes()));
        into.truncate(start + bytes);
    }
}

/// The scales of a part whose number format has one per row.
pub(crate) fn scale_of(column: &SlotPart) -> Option<SlotPart> {
    let words = column.words.start..column.words.start + column.element.scale_words();
    let scale = SlotPart { name: "scales", element: WeightType::F32, values: words.len(), words };
    (scale.values > 0).then_some(scale)
}

/// Whether each row has one value in this column, not a list.
pub(crate) fn is_scalar(column: &SlotPart) -> bool {
    column.values == 1 && column.name != "weights"
}

pub(crate) fn tensor_dtype(element: WeightType) -> &'static str {
    match element {
        WeightType::F32 => "F32",
        WeightType::F16 => "F16",
        WeightType::Bf16 => "BF16",
        WeightType::Int8 => "I8",
    }
}

fn find_difference(first: &TableHeader, other: &TableHeader) -> Option<String> {
    let shape = |table: &TableHeader| {
        let TableHeader { dim, element, width, state, access, .. } = table;
        let access = access.as_deref().unwrap_or("none");
        format!("dim {dim} of {element}, {width} words of {state} a row, access {access}")
    };
    let (first, other) = (shape(first), shape(other));
    (first != other).then(|| format!("{other}, not {first}"))
}
