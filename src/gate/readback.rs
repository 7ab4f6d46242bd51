//! What a running server says it took for a setting, beside what was asked: a cap or a shrunk context shows here before
//! any load is sent.

use std::collections::BTreeMap;

use serde_json::Value;

use super::probe::{Answer, Probes};
use crate::engine::Readback;
use crate::event::{Emit, EmitError, Event, Scope};
use crate::record::model::Effective;

/// Asks the server at `base_url` for each value, says what came, and returns it. `asked` is the profile as a record has
/// it. An address that does not answer, or answers something else, leaves its values unknown.
pub async fn read_back(
    base_url: &str,
    places: &BTreeMap<String, Readback>,
    asked: &Value,
    emit: &dyn Emit,
) -> Result<Vec<Effective>, EmitError> {
    if places.is_empty() {
        return Ok(Vec::new());
    }
    let mut pages: BTreeMap<&str, Option<Value>> = BTreeMap::new();
    if let Ok(probes) = Probes::new(base_url) {
        for place in places.values() {
            if !pages.contains_key(place.path.as_str()) {
                pages.insert(&place.path, page(&probes, &place.path).await);
            }
        }
    }
    let effective: Vec<Effective> = places
        .iter()
        .map(|(key, place)| Effective {
            key: key.clone(),
            asked: at(asked, key).cloned(),
            read: pages
                .get(place.path.as_str())
                .and_then(Option::as_ref)
                .and_then(|page| page.pointer(&place.pointer))
                .cloned(),
        })
        .collect();
    emit.emit(Scope::Run, Event::Readback { effective: effective.clone() })?;
    Ok(effective)
}

async fn page(probes: &Probes, path: &str) -> Option<Value> {
    match probes.get(path).await {
        Answer::Page(200, body) => serde_json::from_slice(&body).ok(),
        Answer::Page(..) | Answer::None(_) => None,
    }
}

/// The value at a dotted path.
fn at<'a>(profile: &'a Value, path: &str) -> Option<&'a Value> {
    path.split('.').try_fold(profile, |value, key| value.get(key))
}
