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
        let lookup = LookupRequest { generation: 4, ids: ids.clone(), bags: bags.clone(), ..Default::default() };
        let mut head = lookup.clone();
        let payloads = head.take_payloads();
        assert!(head.ids.is_empty() && head.bags.is_empty());
        assert_eq!(LookupRequest::decode(&joined(&head, &payloads)[..]).unwrap(), lookup);

        let hint = HintRequest { generation: 4, ids: ids.clone(), ..Default::default() };
        let mut head = hint.clone();
        let payloads = head.take_payloads();
        assert!(head.ids.is_empty());
        assert_eq!(HintRequest::decode(&joined(&head, &payloads)[..]).unwrap(), hint);

        let push = PushRequest { seq: 3, ids, gradients: rows.clone(), bags, ..Default::default() };
        let mut head = push.clone();
        let payloads = head.take_payloads();
        assert!(head.ids.is_empty() && head.gradients.is_empty() && head.bags.is_empty());
        assert_eq!(PushRequest::decode(&joined(&head, &payloads)[..]).unwrap(), push);

        let answer = LookupResponse { rows, encoding: 1, created: 2, late: 3 };
        let mut head = answer.clone();
        let payloads = head.take_payloads();
        assert!(head.rows.is_empty());
        assert_eq!(LookupResponse::decode(&joined(&head, &payloads)[..]).unwrap(), answer);
    }
}
