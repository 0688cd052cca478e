//! Rows between scoring and a Parquet file: a byte that says whether there are scores, the scores, and each key with its length.

use std::io::{self, Read, Write};

use zagros_ingest::InputRow;

pub(crate) fn write(row: InputRow<'_>, keys: usize, scores: Option<&[f64]>, to: &mut impl Write) -> io::Result<()> {
    to.write_all(&[u8::from(scores.is_some())])?;
    for score in scores.unwrap_or_default() {
        to.write_all(&score.to_le_bytes())?;
    }
    for key in (0..keys).map(|column| row.key(column)) {
        to.write_all(&u32::try_from(key.len()).map_err(io::Error::other)?.to_le_bytes())?;
        to.write_all(key)?;
    }
    Ok(())
}

/// Reads a row, adds its scores to those of each column, and puts its keys into `keys`. Answers whether it has scores.
pub(crate) fn read(from: &mut impl Read, keys: &mut [Vec<u8>], scores: &mut [Vec<f64>]) -> io::Result<bool> {
    let mut scored = [0];
    from.read_exact(&mut scored)?;
    let mut score = [0; 8];
    for column in scores.iter_mut().filter(|_| scored[0] == 1) {
        from.read_exact(&mut score)?;
        column.push(f64::from_le_bytes(score));
    }
    for key in keys {
        let mut length = [0; 4];
        from.read_exact(&mut length)?;
        key.resize(u32::from_le_bytes(length) as usize, 0);
        from.read_exact(key)?;
    }
    Ok(scored[0] == 1)
}
