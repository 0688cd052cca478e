//! Flat payloads of the data path, and the owners of buckets.

use bolero::check;
use std::sync::Arc;

use zagros_protocol::packed::{PayloadValues, ValueBuffers, decode_values, encode_values};
use zagros_protocol::{BucketMap, Generation, Segments};
use zagros_zip::ZipEq;

#[test]
fn segments_that_unpack_are_those_that_were_packed() {
    check!().with_type::<(Vec<u8>, Vec<[u8; 3]>)>().for_each(|(noise, triples)| {
        if let Ok(segments) = Segments::unpack(noise, &[]) {
            assert_eq!(&segments.pack(), noise);
        }
        // Small numbers in place of noise: what a good message is made of.
        let words: Vec<u8> = triples.iter().flatten().flat_map(|small| u32::from(*small).to_le_bytes()).collect();
        let rows: usize = triples.iter().map(|triple| usize::from(triple[1])).sum();
        let segments = Segments::unpack(&words, &vec![0; 8 * rows]).expect("lengths agree");
        assert_eq!(segments.pack(), words);
        Segments::unpack(&words, &vec![0; 8 * rows + 1]).expect_err("half an id too much");
    });
}

#[test]
fn values_have_the_length_they_claim_or_are_refused() {
    check!().with_type::<(Vec<u8>, i8, u8)>().for_each(|(bytes, encoding, count)| {
        let (encoding, count) = (i32::from(*encoding), usize::from(*count));
        let Ok(values) = PayloadValues::read("values", bytes, encoding, count, &Arc::new(ValueBuffers::default()))
        else {
            return;
        };
        assert_eq!(values.len(), count);
        let mut again = vec![0.0; count];
        decode_values(bytes, encoding, &mut again).expect("it was read before");
        let same = |(a, b): (&f32, &f32)| a.to_bits() == b.to_bits() || (a.is_nan() && b.is_nan());
        assert!(values.iter().zip_eq(&again).all(same));
        let bytes_again = encode_values(&values, encoding).expect("the encoding is known");
        assert_eq!(bytes_again.len(), bytes.len());
    });
}

#[test]
fn owners_of_buckets_are_a_map_or_are_refused() {
    check!().with_type::<(u64, Vec<u8>)>().for_each(|(generation, owners)| {
        let Ok(map) = BucketMap::unpack_owners(Generation(*generation), owners) else { return };
        assert_eq!(map.bucket_count() as usize * 4, owners.len());
        assert!((0..map.bucket_count()).all(|bucket| map.bucket_owner(bucket).is_some()));
        assert_eq!(map.bucket_owner(map.bucket_count()), None);
        assert!(map.server_count() <= 1 << 16);
    });
}
