//! The bytes of the log, version 4. All numbers are little-endian.
//!
//! ```text
//! segment := preamble record* zeros rest     zeros: a head at least, unless the file ends; rest: see below
//! part    := preamble record* end            a part of a base
//! preamble:= magic [8] · version u32 · 0 u32 · lineage u64 · first u64 · next u64 · 0 [20] · crc u32   64 bytes
//! record  := head · payload · padding to a multiple of 8
//! head    := magic u32 · version u16 · kind u16 · length u32 · table u32 · stripe u32 · width u32 · lsn u64 · durable u64
//!            · payload crc u32 · crc u32                                                            48 bytes
//! ```
//!
//! An lsn (log sequence number) counts the bytes of all records before, over all segments. The segment `first` holds the
//! records from that lsn on; a record lies in one segment. `next` is the lsn at which the next segment starts, and 0 as long as
//! there is none. So the reader notices a missing segment. The `rest` of the last segment was preallocated and not yet written, or
//! it is of an earlier segment whose file is used again: its records name smaller lsns, which belong to other places. `durable` is how far the log was durable when the record was
//! appended: whatever lies before is not allowed to be unreadable, what lies behind may be torn. `crc` is CRC-32C: that of a head
//! covers the 44 bytes before it.
//!
//! | kind | number | payload |
//! |---|---|---|
//! | pushed rows | 1 | origin · ids u64 [count] · slots u32 [count × width] · access u32 [count], if the table has it |
//! | rows | 2 | count u32 · 0 u32 · ids · slots · access, as above |
//! | removed | 3 | count u32 · 0 u32 · ids |
//! | cleared | 4 | nothing: all rows and counts of all tables are gone |
//! | seen | 5 | count u32 · 0 u32 · ids without a row that a lookup named, in order |
//! | counts added | 6 | count u32 · 0 u32 · ids · frequency counts u32 [count] |
//! | sketch added | 7 | cells u32, packed as the table has them |
//! | pending | 8 | origin · step u64 · share f32 · tiles u32 · id u64 · gradient f32 [count] |
//! | commit | 9 | origin · step u64 · time: steps u64 · seconds u64 · window groups u32 [count]; none for group 0 alone |
//! | stripe counts | 10 | lsn u64 · ids u32 · cells u32 · ids u64 · counts u32 · cells u32: in a base, the counts at that lsn |
//! | end | 11 | records u64 before it: the last of a part |
//! | load started | 12 | nothing: rows of a saved model follow, among those of requests |
//! | load complete | 13 | nothing: the load before it has put all its rows in, or none |
//! | window group | 14 | group u32 · buckets u32 · words u32 · 0 u32 · words u64 · buckets u32: these buckets have these windows from now on |
//! | step rows | 15 | step u64 · count u32 · 0 u32 · ids u64 [count] · slots u32 [count × width] as they were before the step · sums of gradients f32 [count × dim] |
//!
//! `origin` is the push: writer u64 · seq u64 · incarnation u32 · count u32. `width` is the number of words of a slot. The words of a
//! window group are its windows, each as writer · incarnation · ranges · first and last number of each range.

use bytemuck::{Pod, cast_slice_mut};
use zagros_table::PushOrigin;

/// First bytes of a segment and of a part of a base.
pub(crate) const SEGMENT_MAGIC: [u8; 8] = *b"ZLOG\r\n\x1a\n";
pub(crate) const RECORD_MAGIC: u32 = 0x5a52_4c47;
/// Version of everything in this module's documentation.
pub const VERSION: u16 = 4;
pub(crate) const PREAMBLE_BYTES: usize = 64;
pub(crate) const HEAD_BYTES: usize = 48;

#[cfg(target_endian = "big")]
compile_error!("the log is written as memory has it, and its format is little-endian");

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SegmentPreamble {
    pub(crate) lineage: u64,
    /// The lsn of its first record.
    pub(crate) first: u64,
    /// The lsn of the first record of the next segment, once there is one. A part of a base has none.
    pub(crate) next: Option<u64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordHead {
    pub kind: RecordKind,
    /// Bytes of the payload, without padding.
    pub length: u32,
    /// Position of the table; 0 where the record is of none.
    pub table: u32,
    /// Stripe of the table; 0 where the record is of none.
    pub stripe: u32,
    /// Words of a slot; 0 where there is none.
    pub width: u32,
    pub lsn: u64,
    /// How far the log was durable when it was appended.
    pub durable: u64,
    pub(crate) payload_crc: u32,
}

/// Why bytes are no head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HeadProblem {
    /// They are something else, or damaged.
    NoHead,
    OtherVersion(u16),
}

impl SegmentPreamble {
    pub(crate) fn to_bytes(self) -> [u8; PREAMBLE_BYTES] {
        let mut bytes = [0; PREAMBLE_BYTES];
        bytes[..8].copy_from_slice(&SEGMENT_MAGIC);
        bytes[8..12].copy_from_slice(&u32::from(VERSION).to_le_bytes());
        bytes[16..24].copy_from_slice(&self.lineage.to_le_bytes());
        bytes[24..32].copy_from_slice(&self.first.to_le_bytes());
        bytes[32..40].copy_from_slice(&self.next.unwrap_or(0).to_le_bytes());
        let crc = crc32c::crc32c(&bytes[..60]);
        bytes[60..].copy_from_slice(&crc.to_le_bytes());
        bytes
    }

    /// What is wrong with the bytes, in words.
    pub(crate) fn from_bytes(bytes: &[u8]) -> Result<Self, String> {
        let bytes = bytes.get(..PREAMBLE_BYTES).ok_or("it is shorter than its preamble")?;
        if bytes[..8] != SEGMENT_MAGIC || crc32c::crc32c(&bytes[..60]) != u32_at(bytes, 60) {
            return Err("its preamble is damaged".to_owned());
        }
        let version = u32_at(bytes, 8);
        if version != u32::from(VERSION) {
            return Err(format!("it is of version {version}, and this release reads version {VERSION}"));
        }
        let next = Some(u64_at(bytes, 32)).filter(|next| *next > 0);
        Ok(Self { lineage: u64_at(bytes, 16), first: u64_at(bytes, 24), next })
    }
}

impl RecordHead {
    pub(crate) fn to_bytes(self) -> [u8; HEAD_BYTES] {
        let mut bytes = [0; HEAD_BYTES];
        bytes[..4].copy_from_slice(&RECORD_MAGIC.to_le_bytes());
        bytes[4..6].copy_from_slice(&VERSION.to_le_bytes());
        bytes[6..8].copy_from_slice(&self.kind.number().to_le_bytes());
        for (place, word) in [self.length, self.table, self.stripe, self.width].into_iter().enumerate() {
            bytes[8 + 4 * place..][..4].copy_from_slice(&word.to_le_bytes());
        }
        bytes[24..32].copy_from_slice(&self.lsn.to_le_bytes());
        bytes[32..40].copy_from_slice(&self.durable.to_le_bytes());
        bytes[40..44].copy_from_slice(&self.payload_crc.to_le_bytes());
        let crc = crc32c::crc32c(&bytes[..44]);
        bytes[44..].copy_from_slice(&crc.to_le_bytes());
        bytes
    }

    pub(crate) fn from_bytes(bytes: &[u8]) -> Result<Self, HeadProblem> {
        let bytes = bytes.get(..HEAD_BYTES).ok_or(HeadProblem::NoHead)?;
        if u32_at(bytes, 0) != RECORD_MAGIC || crc32c::crc32c(&bytes[..44]) != u32_at(bytes, 44) {
            return Err(HeadProblem::NoHead);
        }
        let version = u16::from_le_bytes([bytes[4], bytes[5]]);
        let kind = RecordKind::from_number(u16::from_le_bytes([bytes[6], bytes[7]]));
        let Some(kind) = kind.filter(|_| version == VERSION) else {
            return Err(HeadProblem::OtherVersion(version));
        };
        Ok(Self {
            kind,
            length: u32_at(bytes, 8),
            table: u32_at(bytes, 12),
            stripe: u32_at(bytes, 16),
            width: u32_at(bytes, 20),
            lsn: u64_at(bytes, 24),
            durable: u64_at(bytes, 32),
            payload_crc: u32_at(bytes, 40),
        })
    }

    pub fn record_bytes(&self) -> u64 {
        (HEAD_BYTES as u64) + u64::from(self.length).next_multiple_of(8)
    }

    pub fn end_lsn(&self) -> u64 {
        self.lsn.saturating_add(self.record_bytes())
    }
}

pub(crate) fn u32_at(bytes: &[u8], place: usize) -> u32 {
    let mut word = [0; 4];
    word.copy_from_slice(&bytes[place..place + 4]);
    u32::from_le_bytes(word)
}

pub(crate) fn u64_at(bytes: &[u8], place: usize) -> u64 {
    let mut word = [0; 8];
    word.copy_from_slice(&bytes[place..place + 8]);
    u64::from_le_bytes(word)
}

pub(crate) const ORIGIN_BYTES: usize = 24;
/// Bytes of a count before ids.
pub(crate) const COUNT_BYTES: usize = 8;

/// The push of a record that has one, and its number of entries.
pub(crate) fn origin_of(payload: &[u8]) -> Option<(PushOrigin, usize)> {
    let bytes = payload.get(..ORIGIN_BYTES)?;
    let origin = PushOrigin { writer: u64_at(bytes, 0), incarnation: u32_at(bytes, 16), seq: u64_at(bytes, 8) };
    Some((origin, u32_at(bytes, 20) as usize))
}

pub(crate) fn count_of(payload: &[u8]) -> Option<usize> {
    payload.get(..COUNT_BYTES).map(|bytes| u32_at(bytes, 0) as usize)
}

/// Whole numbers from bytes that lie anywhere in memory.
pub(crate) fn copy_numbers<T: Pod>(bytes: &[u8]) -> Vec<T> {
    let mut numbers = vec![T::zeroed(); bytes.len() / size_of::<T>()];
    let whole = numbers.len() * size_of::<T>();
    cast_slice_mut::<T, u8>(&mut numbers).copy_from_slice(&bytes[..whole]);
    numbers
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum RecordKind {
    PushedRows,
    /// Rows that something else made or changed.
    Rows,
    Removed,
    /// All rows and counts are gone.
    Cleared,
    /// Ids without a row that a lookup named.
    Seen,
    CountsAdded,
    SketchAdded,
    /// A gradient that waits for its row.
    Pending,
    Commit,
    StripeCounts,
    /// The last record of a part of a base.
    End,
    /// A load of saved rows has started.
    LoadStarted,
    LoadComplete,
    /// Buckets whose pushes were applied together, and these pushes.
    WindowGroup,
    /// Rows before a step that is under way, and the sums of their gradients.
    StepRows,
}

impl RecordKind {
    /// All kinds with their numbers and their names for a person.
    pub(crate) const ALL: [(Self, u16, &'static str); 15] = [
        (Self::PushedRows, 1, "pushed rows"),
        (Self::Rows, 2, "rows"),
        (Self::Removed, 3, "removed"),
        (Self::Cleared, 4, "cleared"),
        (Self::Seen, 5, "seen"),
        (Self::CountsAdded, 6, "counts added"),
        (Self::SketchAdded, 7, "sketch added"),
        (Self::Pending, 8, "pending"),
        (Self::Commit, 9, "commit"),
        (Self::StripeCounts, 10, "stripe counts"),
        (Self::End, 11, "end"),
        (Self::LoadStarted, 12, "load started"),
        (Self::LoadComplete, 13, "load complete"),
        (Self::WindowGroup, 14, "window group"),
        (Self::StepRows, 15, "step rows"),
    ];

    pub(crate) fn from_number(number: u16) -> Option<Self> {
        Self::ALL.iter().find(|entry| entry.1 == number).map(|entry| entry.0)
    }

    pub(crate) fn number(self) -> u16 {
        Self::ALL.iter().find(|entry| entry.0 == self).map_or(0, |entry| entry.1)
    }

    pub fn has_stripe(self) -> bool {
        !matches!(
            self,
            Self::Cleared | Self::Commit | Self::End | Self::LoadStarted | Self::LoadComplete | Self::WindowGroup
        )
    }

    pub fn name(self) -> &'static str {
        Self::ALL.iter().find(|entry| entry.0 == self).map_or("", |entry| entry.2)
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) const HEAD: RecordHead = RecordHead {
        kind: RecordKind::Removed,
        length: 13,
        table: 2,
        stripe: 3,
        width: 4,
        lsn: 5 << 40,
        durable: 6,
        payload_crc: 7,
    };

    #[test]
    fn a_head_is_what_was_written_and_any_flipped_bit_is_found() {
        let bytes = HEAD.to_bytes();
        assert_eq!(RecordHead::from_bytes(&bytes), Ok(HEAD));
        assert_eq!((HEAD.record_bytes(), HEAD.end_lsn()), (64, (5 << 40) + 64));
        for bit in 0..HEAD_BYTES * 8 {
            let mut flipped = bytes;
            flipped[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(RecordHead::from_bytes(&flipped), Err(HeadProblem::NoHead), "bit {bit}");
        }
        assert_eq!(RecordHead::from_bytes(&bytes[..47]), Err(HeadProblem::NoHead));
    }

    #[test]
    fn a_head_of_a_later_version_is_known_as_such() {
        let mut bytes = HEAD.to_bytes();
        bytes[4] = 9;
        let crc = crc32c::crc32c(&bytes[..44]);
        bytes[44..].copy_from_slice(&crc.to_le_bytes());
        assert_eq!(RecordHead::from_bytes(&bytes), Err(HeadProblem::OtherVersion(9)));
    }

    #[test]
    fn a_preamble_is_what_was_written_and_any_flipped_bit_is_found() {
        let preamble = SegmentPreamble { lineage: 1 << 63, first: 77, next: Some(79) };
        let bytes = preamble.to_bytes();
        assert_eq!(SegmentPreamble::from_bytes(&bytes), Ok(preamble));
        for bit in 0..PREAMBLE_BYTES * 8 {
            let mut flipped = bytes;
            flipped[bit / 8] ^= 1 << (bit % 8);
            assert!(SegmentPreamble::from_bytes(&flipped).is_err(), "bit {bit}");
        }
        assert!(SegmentPreamble::from_bytes(&bytes[..63]).unwrap_err().contains("shorter"));
    }
}
