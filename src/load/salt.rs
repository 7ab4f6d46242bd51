//! What tells requests apart for a prefix cache that is asked so (vLLM's `cache_salt`): none finds what another has left.

use std::sync::atomic::{AtomicU64, Ordering};

use bytes::{Bytes, BytesMut};
use memchr::memmem;
use serde_json::{Map, Value};

use crate::render::UNIQUE;

/// How many of its digits count requests.
const COUNTED: usize = 16;

/// The salt of a step, of which each request has its own where the workload is cold.
#[derive(Debug)]
pub(super) struct Salt {
    /// 32 hex digits that stand nowhere else.
    own: String,
    each_request: bool,
    next: AtomicU64,
}

impl Salt {
    pub(super) fn new(each_request: bool) -> Self {
        let own = format!("{:016x}{:016x}", rand::random::<u64>(), rand::random::<u64>());
        Salt { own, each_request, next: AtomicU64::new(0) }
    }

    /// Puts it where a value of `body` asks for it.
    pub(super) fn put(&self, body: &mut Map<String, Value>) {
        for value in body.values_mut() {
            if let Value::String(text) = value
                && text.contains(UNIQUE)
            {
                *text = text.replace(UNIQUE, &self.own);
            }
        }
    }

    /// Where it stands in a request that is to have one of its own.
    pub(super) fn place(&self, bytes: &[u8]) -> Option<usize> {
        memmem::rfind(bytes, self.own.as_bytes()).filter(|_| self.each_request)
    }

    /// The request with a salt that no other has, where it stands at `place`.
    pub(super) fn fresh(&self, bytes: Bytes, place: Option<usize>) -> Bytes {
        let Some(place) = place else { return bytes };
        let mut bytes = BytesMut::from(&bytes[..]);
        let digits = format!("{:0COUNTED$x}", self.next.fetch_add(1, Ordering::Relaxed));
        let end = place + self.own.len();
        bytes[end - COUNTED..end].copy_from_slice(digits.as_bytes());
        bytes.freeze()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn body(salt: &Salt) -> Bytes {
        let mut body = Map::new();
        body.insert("cache_salt".to_owned(), json!("{unique}"));
        salt.put(&mut body);
        body.insert("prompt".to_owned(), json!("a {unique} prompt is none of its business"));
        Bytes::from(serde_json::to_string(&body).unwrap())
    }

    #[test]
    fn each_request_of_a_cold_step_has_its_own() {
        let salt = Salt::new(true);
        let whole = body(&salt);
        let place = salt.place(&whole);
        let (one, two) = (salt.fresh(whole.clone(), place), salt.fresh(whole.clone(), place));
        assert!(one != two && one.len() == whole.len());
        let text = String::from_utf8(one.to_vec()).unwrap();
        assert!(text.contains("a {unique} prompt") && !text.contains("\"cache_salt\":\"{unique}"), "{text}");
    }

    #[test]
    fn all_requests_of_another_step_share_one() {
        let (salt, other) = (Salt::new(false), Salt::new(false));
        let whole = body(&salt);
        assert_eq!(salt.place(&whole), None);
        assert_eq!(salt.fresh(whole.clone(), None), whole);
        assert_ne!(body(&other), whole);
    }
}
