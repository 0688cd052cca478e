//! The table that takes the rows of a saved table, and the description in which they must agree.

use zagros_rows::snapshot::{RowConversion, RowConversionError, SnapshotHeader, StateConversion, TableHeader};
use zagros_table::{RowBatch, Table};

use crate::EmbeddingService;
use crate::datapath::OwnedBuckets;

/// What becomes of rows whose weights are saved in another number format than that of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FormatRule {
    Same,
    /// Their weights are rounded to the nearest numbers of the table's format.
    Convert,
}

/// The table that the rows of a saved table go to.
pub(super) struct TableTarget<'a> {
    pub(super) number: u32,
    pub(super) table: &'a Table,
    /// The file has the same number of buckets, so a block can be skipped by its header.
    pub(super) same_buckets: bool,
    /// The file has access metadata of the same format.
    pub(super) same_access: bool,
    /// The file's sketches have the same layout and can be added.
    pub(super) same_counter: bool,
    /// Words of a slot in the file.
    pub(super) saved_width: usize,
    /// `None` if the table keeps every bit of the file's slots.
    conversion: Option<RowConversion>,
}

impl<'a> TableTarget<'a> {
    pub(super) fn find_table(
        service: &'a EmbeddingService,
        placement: &OwnedBuckets,
        (header, saved): (&SnapshotHeader, &TableHeader),
        rule: FormatRule,
    ) -> Result<Self, String> {
        let name = &saved.name;
        let Some(number) = service.names.iter().position(|own| own == name) else {
            return Err(format!("this model has no table `{name}`"));
        };
        let here = describe_table(service, number);
        let conversion = (rule == FormatRule::Convert)
            .then(|| RowConversion::new(saved, service.configs[number].element, StateConversion::Keep))
            .filter(RowConversion::changes_rows);
        let taken = conversion.as_ref().map_or(saved, RowConversion::converted_header);
        if taken.find_difference(&here).is_some() {
            return Err(saved.find_difference(&here).unwrap_or_default());
        }
        let table = service.tables.table(number as u32).map_err(|error| error.to_string())?;
        let same_buckets = header.buckets == placement.bucket_count() && saved.number == here.number;
        let (same_access, same_counter) = (saved.access == here.access, saved.counter == here.counter);
        let (number, saved_width) = (here.number, saved.width);
        Ok(Self { number, table, same_buckets, same_access, same_counter, saved_width, conversion })
    }

    /// Keeps the rows of this server, in the table's format. Drops access metadata of another format: the rows then count as used now.
    pub(super) fn keep_owned(
        &self,
        placement: &OwnedBuckets,
        mut rows: RowBatch,
    ) -> Result<RowBatch, RowConversionError> {
        if !self.same_access {
            rows.access.clear();
        }
        placement.keep_owned(self.number, &mut rows);
        match &self.conversion {
            Some(conversion) => conversion.convert_rows(rows),
            None => Ok(rows),
        }
    }
}

/// Describes table `number` of the service.
pub(super) fn describe_table(service: &EmbeddingService, number: usize) -> TableHeader {
    let config = &service.configs[number];
    let table = service.tables.iter().nth(number);
    TableHeader {
        access: table.and_then(Table::access_layout),
        counter: table.and_then(Table::counter_layout),
        ..TableHeader::new(&service.names[number], number as u32, config)
    }
}
