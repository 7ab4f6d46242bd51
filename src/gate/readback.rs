//! What a running server says it took for a setting, beside what was asked: a cap or a shrunk context shows here before
//! any load is sent.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read;
use std::path::Path;
use std::time::Duration;

use regex::Regex;
use serde_json::Value;

use super::probe::{Answer, Probes};
use crate::engine::{Places, Readback};
use crate::record::model::Effective;

/// No page of what a server says of itself takes longer, unless the server is stuck.
const PATIENCE: Duration = Duration::from_secs(5);
/// Whether drafting is on; a profile asks for it by naming a method.
const DRAFT_ACTIVE: &str = "speculative.active";

/// What is read of a log up to readiness, in bytes.
const LOG_BYTES: u64 = 16 << 20;

/// What is known beside the server's pages.
#[derive(Clone, Copy, Debug)]
pub struct Beside<'a> {
    /// The profile as a record has it.
    pub asked: &'a Value,
    /// What the log of the start-up told.
    pub facts: &'a BTreeMap<String, Value>,
    /// That log.
    pub log: Option<&'a Path>,
}

/// Asks the server at `base_url` for each value. An address that does not answer, or answers something else, leaves its
/// values unknown; one whose value is known from an earlier place is not asked.
pub async fn read_back(base_url: &str, places: &BTreeMap<String, Places>, beside: &Beside<'_>) -> Vec<Effective> {
    let mut pages = Pages { probes: Probes::new(base_url).ok(), known: BTreeMap::new() };
    let log = beside.log.and_then(|path| log_text(path).ok());
    let mut effective = Vec::new();
    for (key, places) in places {
        let mut read = None;
        for place in &places.0 {
            read = match (&place.fact, &place.log, &place.path) {
                (Some(fact), ..) => beside.facts.get(fact).cloned(),
                (_, Some(pattern), _) => log.as_deref().and_then(|text| in_log(text, pattern)),
                (_, _, Some(path)) => pages.get(path).await.and_then(|page| on_page(page, place)),
                (None, None, None) => None,
            };
            read = read.and_then(|value| of_all(value, place, beside.asked));
            if read.is_some() {
                break;
            }
        }
        let asked = match key.as_str() {
            DRAFT_ACTIVE => at(beside.asked, "speculative.method").map(|_| Value::Bool(true)),
            key => at(beside.asked, key).cloned(),
        };
        effective.push(Effective { key: key.clone(), asked, read });
    }
    effective
}

/// A page as it came.
struct Page {
    text: String,
    json: Option<Value>,
}

impl Page {
    fn of(text: String) -> Self {
        let json = serde_json::from_str(&text).ok();
        Page { text, json }
    }
}

/// The pages that were asked for so far; `None` where nothing came.
struct Pages {
    probes: Option<Probes>,
    known: BTreeMap<String, Option<Page>>,
}

impl Pages {
    async fn get(&mut self, path: &str) -> Option<&Page> {
        if !self.known.contains_key(path) {
            let text = match &self.probes {
                Some(probes) => page(probes, path).await,
                None => None,
            };
            self.known.insert(path.to_owned(), text.map(Page::of));
        }
        self.known.get(path)?.as_ref()
    }
}

/// A value for one of several, for all of them.
fn of_all(value: Value, place: &Readback, asked: &Value) -> Option<Value> {
    let Some(per) = &place.per else { return Some(value) };
    let parts = at(asked, per).and_then(Value::as_u64).unwrap_or(1);
    Some(value.as_u64()?.saturating_mul(parts).into())
}

fn on_page(page: &Page, place: &Readback) -> Option<Value> {
    if let Some(pointer) = &place.present {
        let value = page.json.as_ref()?.pointer(pointer).unwrap_or(&Value::Null);
        return Some(Value::Bool(!matches!(value, Value::Null | Value::Bool(false)) && value != ""));
    }
    if let Some(pointer) = &place.pointer {
        return page.json.as_ref()?.pointer(pointer).filter(|value| !value.is_null()).cloned();
    }
    in_text(&page.text, &Regex::new(place.pattern.as_deref()?).ok()?)
}

/// The first line's that fits; without a group, whether any does.
fn in_log(text: &str, pattern: &str) -> Option<Value> {
    let regex = Regex::new(pattern).ok()?;
    if !has_value(&regex) {
        return Some(Value::Bool(text.lines().any(|line| regex.is_match(line))));
    }
    text.lines().find_map(|line| in_text(line, &regex))
}

fn has_value(regex: &Regex) -> bool {
    regex.capture_names().flatten().any(|name| name == "value")
}

fn in_text(text: &str, regex: &Regex) -> Option<Value> {
    if !has_value(regex) {
        return Some(Value::Bool(regex.is_match(text)));
    }
    let groups = regex.captures(text)?;
    let word = groups.name("value")?.as_str();
    let whole = |word: &str| {
        let number = word.replace(',', "").parse::<f64>().ok();
        number.filter(|number| number.fract() == 0.0 && number.abs() < 9e15)
    };
    let Some(value) = whole(word) else { return Some(Value::from(word)) };
    let times = groups.name("times").map_or(Some(1.0), |times| whole(times.as_str()))?;
    Some(Value::from((value * times) as i64))
}

fn log_text(path: &Path) -> std::io::Result<String> {
    let mut bytes = Vec::new();
    File::open(path)?.take(LOG_BYTES).read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// Empties the server's prefix cache; says what stood against it.
pub async fn flush(base_url: &str, path: &str) -> Result<(), String> {
    let probes = Probes::new(base_url).map_err(|error| error.to_string())?;
    match tokio::time::timeout(PATIENCE, probes.post(path, &Value::Object(Default::default()))).await {
        Ok(Ok(response)) if response.status().is_success() => Ok(()),
        Ok(Ok(response)) => Err(format!("it answered {}", response.status().as_u16())),
        Ok(Err(why)) => Err(why),
        Err(_) => Err("timeout".to_owned()),
    }
}

async fn page(probes: &Probes, path: &str) -> Option<String> {
    match tokio::time::timeout(PATIENCE, probes.get(path)).await {
        Ok(Answer::Page(200, body)) => String::from_utf8(body).ok(),
        Ok(Answer::Page(..) | Answer::None(_)) | Err(_) => None,
    }
}

/// The value at a dotted path.
fn at<'a>(profile: &'a Value, path: &str) -> Option<&'a Value> {
    path.split('.').try_fold(profile, |value, key| value.get(key)).filter(|value| !value.is_null())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::engine;
    use crate::profile::EngineKind;

    fn page(text: &str) -> Page {
        Page::of(text.to_owned())
    }

    fn place(yaml: &str) -> Readback {
        serde_yaml::from_str(yaml).unwrap()
    }

    #[test]
    fn a_value_is_found_by_pointer_presence_and_pattern() {
        let info = json!({
            "max_total_num_tokens": 8192,
            "speculative_algorithm": null,
            "internal_states": [{"effective_max_running_requests_per_dp": 10}]
        });
        let info = page(&info.to_string());
        let metrics = page(
            "# HELP x\nvllm:cache_config_info{block_size=\"16\",num_gpu_blocks=\"100\"} 1.0\n\
             sglang:max_total_num_tokens{m=\"x\"} 8192.0\n",
        );
        let value = |page: &Page, yaml: &str| on_page(page, &place(yaml));
        assert_eq!(value(&info, "{path: /i, pointer: /max_total_num_tokens}"), Some(json!(8192)));
        assert_eq!(value(&info, "{path: /i, pointer: /nothing}"), None);
        assert_eq!(value(&info, "{path: /i, pointer: /speculative_algorithm}"), None);
        assert_eq!(value(&info, "{path: /i, present: /speculative_algorithm}"), Some(json!(false)));
        assert_eq!(value(&info, "{path: /i, present: /internal_states}"), Some(json!(true)));
        assert_eq!(value(&metrics, "{path: /m, present: /x}"), None, "of a page that is no JSON nothing is known");
        let blocks = r#"{path: /m, pattern: 'block_size="(?<times>\d+)".*num_gpu_blocks="(?<value>\d+)"'}"#;
        assert_eq!(value(&metrics, blocks), Some(json!(1600)));
        assert_eq!(value(&metrics, r"{path: /m, pattern: 'max_total_num_tokens\S* (?<value>\S+)'}"), Some(json!(8192)));
        assert_eq!(value(&metrics, "{path: /m, pattern: 'spec_decode'}"), Some(json!(false)));
    }

    #[test]
    fn a_log_is_read_line_by_line_and_a_part_is_multiplied() {
        let log = "x\nCapture cuda graph bs [1, 2, 4, 8]\nCapture draft bs=[1, 2]\nGPU KV cache size: 766,848 tokens\n";
        assert_eq!(in_log(log, r"bs (?:=)?\[(?:\d+, )*(?<value>\d+)\]"), Some(json!(8)));
        assert_eq!(in_log(log, r"cache size: (?<value>[\d,]+) tokens"), Some(json!(766_848)));
        assert_eq!(in_log(log, "nothing (?<value>x)"), None);
        assert_eq!((in_log(log, "draft"), in_log(log, "nothing")), (Some(json!(true)), Some(json!(false))));
        let asked = json!({"parallel": {"data": 2}});
        let per = |per: &str| of_all(json!(10), &place(&format!("{{fact: x, per: {per}}}")), &asked);
        assert_eq!((per("parallel.data"), per("parallel.tensor")), (Some(json!(20)), Some(json!(10))));
    }

    /// What is read back of a server whose pages and log were kept.
    fn real(kind: EngineKind, files: &[(&str, &str)], log: Option<&str>) -> Option<BTreeMap<String, Value>> {
        let corpus =
            std::env::var_os("ORCH_CORPUS").map_or_else(|| "../shared/corpus".into(), std::path::PathBuf::from);
        let text = |name: &str| std::fs::read_to_string(corpus.join("real").join(name)).ok();
        let pages: BTreeMap<&str, Page> =
            files.iter().map(|(path, name)| Some((*path, Page::of(text(name)?)))).collect::<Option<_>>()?;
        let log = match log {
            Some(name) => Some(text(name)?),
            None => None,
        };
        let definition = engine::definition(kind, &[]).unwrap();
        let read = |place: &Readback| match (&place.log, &place.path) {
            (Some(pattern), _) => in_log(log.as_deref()?, pattern),
            (_, Some(path)) => on_page(pages.get(path.as_str())?, place),
            _ => None,
        };
        let each =
            definition.readback.iter().filter_map(|(key, places)| Some((key.clone(), places.0.iter().find_map(read)?)));
        Some(each.collect())
    }

    #[test]
    fn real_servers_say_what_they_hold() {
        let sglang = real(EngineKind::Sglang, &[("/get_server_info", "sglang-0.5.23-cpu-get_server_info.json")], None);
        let vllm = real(
            EngineKind::Vllm,
            &[("/metrics", "vllm-0.32.0-cpu-metrics.txt")],
            Some("vllm-0.32.0-cpu-spec-ngram.log"),
        );
        let (Some(sglang), Some(vllm)) = (sglang, vllm) else {
            assert!(std::env::var_os("CI").is_none(), "the corpus is missing");
            return;
        };
        assert_eq!(sglang["max_running_requests"], 2048);
        assert_eq!(sglang["kv_tokens"], 8192);
        assert_eq!(sglang["speculative.active"], false);
        assert!(!sglang.contains_key("graphs.max_batch"), "decode graphs are off there");
        assert_eq!(vllm["kv_tokens"], 1_048_576);
        assert_eq!(vllm["max_running_requests"], 4);
        assert_eq!(vllm["speculative.active"], true);
        assert!(!vllm.contains_key("graphs.max_batch"), "it was started eager");
    }
}
