//! The limit: rows in one plain file, at known offsets.

use std::fs::File;
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::Path;

/// A plain file of rows.
pub(crate) struct Plain {
    file: File,
    width: usize,
}

impl Plain {
    pub(crate) fn create(folder: &Path, width: usize) -> Self {
        let mut options = File::options();
        options.read(true).write(true).create_new(true);
        Self { file: options.open(folder.join("rows")).expect("a new file"), width }
    }

    pub(crate) fn append(&mut self, rows: &[u32]) {
        self.file.write_all(bytemuck::cast_slice(rows)).expect("rows are written");
    }

    /// The rows of these numbers, in order.
    pub(crate) fn read(&self, numbers: &[usize]) -> Vec<u32> {
        let mut rows = vec![0; numbers.len() * self.width];
        for (index, number) in numbers.iter().enumerate() {
            let row = bytemuck::cast_slice_mut(&mut rows[index * self.width..][..self.width]);
            self.file.read_exact_at(row, (number * self.width * 4) as u64).expect("a row is read");
        }
        rows
    }
}
