//! TensorBoard's event files: protobuf events in TFRecord frames.
//!
//! A frame is `length: u64`, `masked crc32c of the length: u32`, data, `masked crc32c of the data: u32`,
//! all little-endian (tensorflow/core/lib/io/record_writer). The messages are the few fields of
//! tensorflow/core/util/event.proto and summary.proto that scalars need.

use std::io::{self, Write};

use prost::Message;

#[derive(Clone, PartialEq, Message)]
pub struct EventRecord {
    /// Seconds since the epoch.
    #[prost(double, tag = "1")]
    pub wall_time: f64,
    #[prost(int64, tag = "2")]
    pub step: i64,
    /// Only in the first event: `brain.Event:2`.
    #[prost(string, optional, tag = "3")]
    pub file_version: Option<String>,
    #[prost(message, optional, tag = "5")]
    pub summary: Option<StepScalars>,
}

#[derive(Clone, PartialEq, Message)]
pub struct StepScalars {
    #[prost(message, repeated, tag = "1")]
    pub values: Vec<NamedScalar>,
}

#[derive(Clone, PartialEq, Message)]
pub struct NamedScalar {
    /// Name, with slashes for groups: `train/loss`.
    #[prost(string, tag = "1")]
    pub tag: String,
    #[prost(float, tag = "2")]
    pub simple_value: f32,
}

/// Writes events to a file that TensorBoard can follow.
#[derive(Debug)]
pub struct EventWriter<W> {
    out: W,
}

impl<W: Write> EventWriter<W> {
    pub fn new(out: W, wall_time: f64) -> io::Result<Self> {
        let mut writer = Self { out };
        let file_version = Some("brain.Event:2".to_owned());
        writer.write(&EventRecord { wall_time, step: 0, file_version, summary: None })?;
        Ok(writer)
    }

    pub fn write_scalars(&mut self, wall_time: f64, step: u64, scalars: &[(impl AsRef<str>, f64)]) -> io::Result<()> {
        let values = scalars.iter();
        let values =
            values.map(|(tag, value)| NamedScalar { tag: tag.as_ref().to_owned(), simple_value: *value as f32 });
        let summary = Some(StepScalars { values: values.collect() });
        let step = i64::try_from(step).unwrap_or(i64::MAX);
        self.write(&EventRecord { wall_time, step, file_version: None, summary })
    }

    /// Writes and flushes whole frames, so that a reader never sees a part of one.
    fn write(&mut self, event: &EventRecord) -> io::Result<()> {
        self.out.write_all(&frame(&event.encode_to_vec()))?;
        self.out.flush()
    }
}

fn frame(data: &[u8]) -> Vec<u8> {
    let length = (data.len() as u64).to_le_bytes();
    [&length[..], &masked_crc(&length).to_le_bytes(), data, &masked_crc(data).to_le_bytes()].concat()
}

/// The CRC in TensorFlow's masked form, because a CRC over data that contains CRCs would be weak.
fn masked_crc(data: &[u8]) -> u32 {
    crc32c::crc32c(data).rotate_right(15).wrapping_add(0xa282_ead8)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A separate reader, bit by bit, so that a mistake is not made on both sides.
    fn read(mut file: &[u8]) -> Vec<EventRecord> {
        let mut events = Vec::new();
        while !file.is_empty() {
            let length = u64::from_le_bytes(file[..8].try_into().unwrap()) as usize;
            assert_eq!(u32::from_le_bytes(file[8..12].try_into().unwrap()), mask(bitwise_crc32c(&file[..8])));
            let data = &file[12..12 + length];
            let crc = u32::from_le_bytes(file[12 + length..16 + length].try_into().unwrap());
            assert_eq!(crc, mask(bitwise_crc32c(data)));
            events.push(EventRecord::decode(data).unwrap());
            file = &file[16 + length..];
        }
        events
    }

    fn mask(crc: u32) -> u32 {
        let (high, low) = (crc >> 15, u64::from(crc) << 17);
        (high | low as u32).wrapping_add(0xa282_ead8)
    }

    fn bitwise_crc32c(data: &[u8]) -> u32 {
        let mut crc = u32::MAX;
        for byte in data {
            crc ^= u32::from(*byte);
            for _ in 0..8 {
                crc = (crc >> 1) ^ if crc & 1 == 1 { 0x82f6_3b78 } else { 0 };
            }
        }
        !crc
    }

    #[test]
    fn events_are_framed_and_read_back() {
        let mut file = Vec::new();
        let mut writer = EventWriter::new(&mut file, 100.0).unwrap();
        writer.write_scalars(101.5, 7, &[("train/loss", 0.5), ("train/auc", 0.75)]).unwrap();
        let events = read(&file);
        assert_eq!(events[0].file_version.as_deref(), Some("brain.Event:2"));
        assert_eq!((events[1].wall_time, events[1].step), (101.5, 7));
        let values = &events[1].summary.as_ref().unwrap().values;
        assert_eq!((values[0].tag.as_str(), values[0].simple_value), ("train/loss", 0.5));
        assert_eq!((values[1].tag.as_str(), values[1].simple_value), ("train/auc", 0.75));
        assert_eq!(events.len(), 2);
    }

    #[test]
    fn the_bytes_are_tensorflows() {
        // Field 1 double, field 3 string, as protobuf's wire format has them.
        let mut file = Vec::new();
        EventWriter::new(&mut file, 1.0).unwrap();
        let expected = [&[0x09][..], &1.0_f64.to_le_bytes(), &[0x1a, 13], b"brain.Event:2"].concat();
        assert_eq!(file[12..file.len() - 4], expected);
    }
}
