//! Reads of rows by their keys, of any number of tables: their pieces go through the queue together, so that the device has always
//! something to do although each table needs few rows.

use zagros_table::{ColdError, ColdRead};

use super::pieces::{RecordRead, group_reads};
use super::shared::SharedLog;

impl SharedLog {
    pub(crate) fn read_rows(&self, parts: &mut [ColdRead<'_>]) -> Result<(), ColdError> {
        let (mut pieces, mut found) = (Vec::new(), Vec::with_capacity(parts.len()));
        for (number, part) in parts.iter_mut().enumerate() {
            let table = self.table("read", part.table)?;
            let (reads, files) = table.find(part.cold_keys, part.into);
            let first = pieces.len();
            pieces.extend(group_reads(&reads, table.layout, &files, self.queue.longest_piece())?);
            pieces[first..].iter_mut().for_each(|piece| piece.part = number);
            found.push((table, reads));
        }
        let _under_way = self.counters.count_reads(&pieces);
        self.queue.read(&pieces, &mut |piece, bytes| {
            let ((table, reads), part) = (&found[piece.part], &mut parts[piece.part]);
            let width = table.layout.format.width;
            let mut row_of =
                |read: &RecordRead| (part.cold_keys[read.position as usize], read.position as usize * width);
            table.take_rows(piece, bytes, reads, &mut row_of, &mut part.into.rows)
        })
    }
}
