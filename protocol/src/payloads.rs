//! The long fields of the data path's messages, with their field numbers. They are sent without a copy.

use bytes::Bytes;

use crate::datapath::{HintRequest, LookupRequest, LookupResponse, PushRequest};

impl LookupRequest {
    pub fn take_payloads(&mut self) -> [(u32, Bytes); 2] {
        [(3, std::mem::take(&mut self.ids)), (6, std::mem::take(&mut self.bags))]
    }
}

impl HintRequest {
    pub fn take_payloads(&mut self) -> [(u32, Bytes); 1] {
        [(3, std::mem::take(&mut self.ids))]
    }
}

impl LookupResponse {
    pub fn take_payloads(&mut self) -> [(u32, Bytes); 1] {
        [(1, std::mem::take(&mut self.rows))]
    }
}

impl PushRequest {
    pub fn take_payloads(&mut self) -> [(u32, Bytes); 3] {
        let take = std::mem::take;
        [(6, take(&mut self.ids)), (7, take(&mut self.gradients)), (9, take(&mut self.bags))]
    }
}

#[cfg(test)]
mod tests {
    use prost::Message;

    use super::*;

    /// The bytes of head and payloads in the form of the wire.
    fn joined(head: &impl Message, payloads: &[(u32, Bytes)]) -> Vec<u8> {
        let mut bytes = head.encode_to_vec();
        for (number, payload) in payloads {
            prost::encode_length_delimiter((*number as usize) << 3 | 2, &mut bytes).unwrap();
            prost::encode_length_delimiter(payload.len(), &mut bytes).unwrap();
            bytes.extend_from_slice(payload);
        }
        bytes
    }

    #[test]
    fn a_payload_is_found_in_its_field() {
        let (ids, bags, rows) = (Bytes::from_static(b"ids"), Bytes::from_static(b"bags"), Bytes::from_static(b"rows"));
        macro_rules! check {
            ($message:expr, $of:ident: $($field:ident)+) => {
                let message = $message;
                let mut head = message.clone();
                let payloads = head.take_payloads();
                $(assert!(head.$field.is_empty());)+
                assert_eq!($of::decode(&joined(&head, &payloads)[..]).unwrap(), message);
            };
        }
        let lookup = LookupRequest { generation: 4, ids: ids.clone(), bags: bags.clone(), ..Default::default() };
        check!(lookup, LookupRequest: ids bags);
        check!(HintRequest { generation: 4, ids: ids.clone(), ..Default::default() }, HintRequest: ids);
        let push = PushRequest { seq: 3, ids, gradients: rows.clone(), bags, ..Default::default() };
        check!(push, PushRequest: ids gradients bags);
        check!(LookupResponse { rows, encoding: 1, created: 2, late: 3 }, LookupResponse: rows);
    }
}
