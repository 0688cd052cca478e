//! One table across the files of a save.

use zagros_snapshot::{Content, Kind, Part, RowBatch, SavedFile, TableHeader, parts};
use zagros_table::WeightType;

use crate::ExportError;

/// A table of a save, and what of it is wanted.
#[derive(Clone, Debug)]
pub struct Source {
    files: Vec<SavedFile>,
    header: TableHeader,
    columns: Vec<Part>,
    with_marks: bool,
}

impl Source {
    /// The table `name` of these files, its weights alone or with all that its rows have besides.
    ///
    /// # Errors
    /// When a file cannot be read, has no such table, or has another one of this name.
    pub fn new(files: &[SavedFile], name: &str, with_state: bool) -> Result<Self, ExportError> {
        let mut header: Option<TableHeader> = None;
        for file in files {
            let found = file.open()?.table(name)?.1.clone();
            let problem = header.as_ref().and_then(|first| difference(first, &found));
            if let Some(problem) = problem {
                return Err(ExportError::Differs { path: file.path().to_owned(), table: name.to_owned(), problem });
            }
            header = header.or(Some(found));
        }
        let header = header.unwrap_or_default();
        let mut columns = parts(&header);
        columns.truncate(if with_state { columns.len() } else { 1 });
        let with_marks = with_state && header.access.is_some();
        Ok(Self { files: files.to_vec(), header, columns, with_marks })
    }

    /// The table.
    #[must_use]
    pub fn header(&self) -> &TableHeader {
        &self.header
    }

    /// Parts of a slot that are wanted, weights first.
    pub(crate) fn columns(&self) -> &[Part] {
        &self.columns
    }

    /// Whether marks are wanted and there.
    pub(crate) fn with_marks(&self) -> bool {
        self.with_marks
    }

    /// Names of what is written.
    pub(crate) fn names(&self, id: &str) -> Vec<String> {
        let columns = self.columns.iter().map(|column| column.name);
        std::iter::once(id).chain(columns).chain(self.with_marks.then_some("mark")).map(str::to_owned).collect()
    }

    /// What other programs are reported of the table, as pairs of text.
    pub(crate) fn description(&self) -> Vec<(&'static str, String)> {
        let TableHeader { name, dim, element, state, .. } = &self.header;
        let reported = [("table", name.clone()), ("dim", dim.to_string()), ("element", element.clone())];
        reported.into_iter().chain([("optimizer_state", state.clone())]).collect()
    }

    /// Rows of all files, counted without reading them where the format allows.
    pub(crate) fn rows(&self) -> Result<u64, ExportError> {
        let mut rows = 0;
        for file in &self.files {
            let mut reader = file.open()?;
            let table = reader.table(&self.header.name)?.0;
            // No block is wanted: each is only asked how many rows it has.
            let counted = std::cell::Cell::new(0);
            reader.next(|head| {
                let is_ours = head.kind == Kind::Rows && head.table as usize == table;
                counted.set(counted.get() + if is_ours { u64::from(head.entries) } else { 0 });
                false
            })?;
            rows += counted.get();
        }
        Ok(rows)
    }

    /// Hands over block after block, with the bytes of the files that it took to come there.
    pub(crate) fn each_block(
        &self,
        mut take: impl FnMut(RowBatch, u64) -> Result<(), ExportError>,
    ) -> Result<(), ExportError> {
        for file in &self.files {
            let mut reader = file.open()?;
            let table = reader.table(&self.header.name)?.0;
            let mut before = 0;
            while let Some(block) = reader.next(|head| head.kind == Kind::Rows && head.table as usize == table)? {
                let Content::Rows(rows) = block.content else { continue };
                take(rows, reader.position() - before)?;
                before = reader.position();
            }
        }
        Ok(())
    }
}

/// Bytes of one part of every slot, row after row, little-endian, without padding.
pub(crate) fn column_bytes(column: &Part, width: usize, slots: &[u32], into: &mut Vec<u8>) {
    into.clear();
    let bytes = column.values * column.element.bytes();
    for slot in slots.chunks_exact(width) {
        let start = into.len();
        into.extend(slot[column.words.clone()].iter().flat_map(|word| word.to_le_bytes()));
        into.truncate(start + bytes);
    }
}

/// Whether each row has one value of it and not a list.
pub(crate) fn is_scalar(column: &Part) -> bool {
    column.values == 1 && column.name != "weights"
}

/// safetensors' name of a type.
pub(crate) fn dtype(element: WeightType) -> &'static str {
    match element {
        WeightType::F32 => "F32",
        WeightType::F16 => "F16",
        WeightType::Bf16 => "BF16",
    }
}

fn difference(first: &TableHeader, other: &TableHeader) -> Option<String> {
    let shape = |table: &TableHeader| {
        let TableHeader { dim, element, width, state, access, .. } = table;
        format!(
            "dim {dim} of {element}, {width} words of {state} a row, access {}",
            access.as_deref().unwrap_or("none")
        )
    };
    let (first, other) = (shape(first), shape(other));
    (first != other).then(|| format!("{other}, not {first}"))
}
