//! A Parquet file as the crate `parquet` reads pages from it: on a disk, or a column of a row group of an object in a store.
//!
//! In a store, the pages of a used column are fetched in pieces, which all parsing threads share; the first pieces of all columns are
//! requested at once, while earlier rows are parsed. Nothing is copied to a disk.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, BufReader, Read};
use std::os::unix::fs::FileExt;
use std::sync::{Arc, Mutex, PoisonError};

use ::parquet::basic::CompressionCodec;
use ::parquet::errors::{ParquetError, Result};
use ::parquet::file::reader::{ChunkReader, Length};
use bytes::{Bytes, BytesMut};
use zagros_store::{ObjectRange, Objects, StoreError, StoredObject};

/// The largest page as it is in the file. Writers make pages of a mebibyte by default; the largest default is 100 MB.
const MOST_PAGE_BYTES: usize = 128 << 20;

/// Bytes read at once for the header of a page, which has a few dozen, and more if it has the smallest and largest value.
const HEADER_BYTES: usize = 512;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ChunkPlace {
    pub(super) start: u64,
    pub(super) end: u64,
    pub(super) codec: CompressionCodec,
}

/// Reads a file at any offset, and has no position that readers of its columns would share.
#[derive(Clone, Debug)]
pub(crate) enum PageFile {
    Disk(Arc<File>),
    /// The pages of one column in a row group of an object.
    Object(Arc<ObjectRange>),
}

#[derive(Debug)]
pub(crate) struct ReadFrom {
    file: PageFile,
    at: u64,
}

impl PageFile {
    fn read_at(&self, out: &mut [u8], at: u64) -> io::Result<usize> {
        match self {
            Self::Disk(file) => file.read_at(out, at),
            Self::Object(range) => {
                let bytes = range.bytes_at(at).map_err(io::Error::other)?;
                let taken = bytes.len().min(out.len());
                out[..taken].copy_from_slice(&bytes[..taken]);
                Ok(taken)
            }
        }
    }

    fn bytes(&self, start: u64, length: usize) -> io::Result<Bytes> {
        match self {
            Self::Disk(file) => {
                let mut page = vec![0; length];
                file.read_exact_at(&mut page, start)?;
                Ok(page.into())
            }
            Self::Object(range) => {
                let mut bytes = range.bytes_at(start).map_err(io::Error::other)?;
                if bytes.len() >= length {
                    return Ok(bytes.split_to(length));
                }
                let mut page = BytesMut::new();
                while page.len() < length && !bytes.is_empty() {
                    page.extend_from_slice(&bytes[..bytes.len().min(length - page.len())]);
                    bytes = range.bytes_at(start + page.len() as u64).map_err(io::Error::other)?;
                }
                if page.len() < length { Err(io::ErrorKind::UnexpectedEof.into()) } else { Ok(page.freeze()) }
            }
        }
    }
}

impl Read for ReadFrom {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let read = self.file.read_at(out, self.at)?;
        self.at += read as u64;
        Ok(read)
    }
}

impl Length for PageFile {
    fn len(&self) -> u64 {
        match self {
            Self::Disk(file) => file.metadata().map_or(0, |metadata| metadata.len()),
            Self::Object(range) => range.byte_range().end,
        }
    }
}

impl ChunkReader for PageFile {
    type T = BufReader<ReadFrom>;

    fn get_read(&self, start: u64) -> Result<Self::T> {
        let from = ReadFrom { file: self.clone(), at: start };
        Ok(BufReader::with_capacity(HEADER_BYTES, from))
    }

    fn get_bytes(&self, start: u64, length: usize) -> Result<Bytes> {
        if length > MOST_PAGE_BYTES {
            let text =
                format!("a page of {length} bytes, the most is {MOST_PAGE_BYTES}; write the file with smaller pages");
            return Err(ParquetError::General(text));
        }
        match self.bytes(start, length) {
            Ok(page) => Ok(page),
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
                Err(ParquetError::General(format!("the file ends before the page at byte {start} does")))
            }
            Err(error) => Err(ParquetError::General(format!("cannot read at byte {start}: {error}"))),
        }
    }
}

/// Row groups whose pieces are in memory: the one that is read, and its neighbours.
const HELD: usize = 3;

/// The columns of a row group, in the order in which the job uses them.
pub(crate) type GroupRanges = Arc<[Arc<ObjectRange>]>;

#[derive(Debug)]
pub(crate) struct StoredGroups {
    objects: Objects,
    object: StoredObject,
    held: Mutex<VecDeque<(usize, GroupRanges)>>,
}

impl StoredGroups {
    pub(super) fn new(objects: Objects, object: StoredObject) -> Self {
        Self { objects, object, held: Mutex::default() }
    }

    /// The columns of row group `group`, of which the first bytes are requested.
    pub(crate) fn group_ranges(&self, group: usize, chunks: &[ChunkPlace]) -> Result<GroupRanges, StoreError> {
        let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, ranges)) = held.iter().find(|(held, _)| *held == group) {
            return Ok(Arc::clone(ranges));
        }
        let mut ranges: Vec<Arc<ObjectRange>> = Vec::with_capacity(chunks.len());
        for ChunkPlace { start, end, .. } in chunks {
            // A column that two features use is fetched once.
            let same = ranges.iter().find(|range| range.byte_range() == (*start..*end)).map(Arc::clone);
            ranges.push(match same {
                Some(range) => range,
                None => {
                    let range = self.objects.open_range(&self.object, *start..*end)?;
                    range.begin_fetch();
                    Arc::new(range)
                }
            });
        }
        let ranges: GroupRanges = ranges.into();
        held.push_back((group, Arc::clone(&ranges)));
        if held.len() > HELD {
            held.pop_front();
        }
        Ok(ranges)
    }
}

impl PartialEq for StoredGroups {
    /// What is held does not count.
    fn eq(&self, other: &Self) -> bool {
        self.object == other.object
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use ::parquet::data_type::{ByteArray, ByteArrayType, Int32Type};
    use ::parquet::file::properties::WriterProperties;
    use ::parquet::file::writer::SerializedFileWriter;
    use ::parquet::schema::parser::parse_message_type;
    use zagros_fakes::s3::{FakeS3, S3Fault};
    use zagros_job::{ColumnarFormat, Format, Job};

    use crate::fixture::{self, read_thirds as read};
    use crate::source::use_store;
    use crate::{BatchStream, DataPart, IngestError, find_files};

    const SCHEMA: &str = "message rows { required int32 click; required int32 age; required binary city (UTF8);
        required binary tags (UTF8); required binary unused (UTF8); }";
    const ROWS: usize = 40_000;
    const GROUPS: usize = 5;

    /// A file of several row groups, of which a column is larger than a piece.
    fn parquet() -> Vec<u8> {
        let schema = Arc::new(parse_message_type(SCHEMA).unwrap());
        let properties = WriterProperties::builder().set_dictionary_enabled(false).build();
        let mut writer = SerializedFileWriter::new(Vec::new(), schema, Arc::new(properties)).unwrap();
        for group in 0..GROUPS {
            let rows: Vec<usize> = (group * ROWS..(group + 1) * ROWS).collect();
            let mut group = writer.next_row_group().unwrap();
            for column in 0..5 {
                let mut open = group.next_column().unwrap().unwrap();
                if column < 2 {
                    let number = |row: &usize| (row * column % 97 + row % 2) as i32 % 2;
                    let numbers: Vec<i32> = rows.iter().map(number).collect();
                    open.typed::<Int32Type>().write_batch(&numbers, None, None).unwrap();
                } else {
                    let text = |row: &usize| ByteArray::from(&*format!("{column}|a much longer text {row}"));
                    let texts: Vec<ByteArray> = rows.iter().map(text).collect();
                    open.typed::<ByteArrayType>().write_batch(&texts, None, None).unwrap();
                }
                open.close().unwrap();
            }
            group.close().unwrap();
        }
        writer.into_inner().unwrap()
    }

    fn job() -> Job {
        let mut job = fixture::delimited(|_| ());
        job.data.format = Format::Parquet(ColumnarFormat::default());
        job.train.batch_size = 1_000;
        job
    }

    #[test]
    fn an_object_gives_the_batches_of_a_file_and_only_used_columns_are_fetched() {
        // A row group has two small columns and two of two pieces; threads may fetch a few pieces again.
        let requests = GROUPS * 6..GROUPS * 9;
        assert_eq!(fixture::read_object("parquet-logs", &parquet(), &job(), requests), ROWS * GROUPS);
    }

    #[test]
    fn what_the_store_says_is_the_error() {
        let (store, content) = (FakeS3::start("parquet-bad"), parquet());
        use_store("s3://parquet-bad", &store);
        let job = job();
        store.put_object("cut", content[..content.len() / 2].to_vec());
        store.put_object("text", "click,age\n1,2\n");
        for (key, expected) in [
            ("gone", "is neither an object nor a prefix of objects"),
            ("cut", "s3://parquet-bad/cut: it does not end with PAR1"),
            ("text", "it does not start with PAR1"),
        ] {
            let error = read(&job, &format!("s3://parquet-bad/{key}")).unwrap_err().to_string();
            assert!(error.contains(expected), "{key}: {error}");
        }
        store.put_object("a", content);
        let found = find_files(&job, &["s3://parquet-bad/a".into()]).unwrap();
        store.inject_fault(S3Fault::Denies, "GET /parquet-bad/a", 1_000);
        let stream = BatchStream::open_files(&job, DataPart::All, &found).unwrap();
        let denied = stream.collect::<Result<Vec<_>, _>>().unwrap_err();
        assert!(matches!(denied, IngestError::Store { .. }), "{denied}");
        assert!(denied.to_string().contains("(AccessDenied); check AWS_ACCESS_KEY_ID"), "{denied}");
    }
}
