//! What a running server says it took for a setting, beside what was asked: a cap or a shrunk context shows here before
//! any load is sent.

use std::collections::{BTreeMap, BTreeSet};
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
/// The requests of which the largest captured graph is, over all ranks.
const GRAPH_BATCH: &str = "graphs.max_batch";

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
    let mut parts = Parts { asked: beside.asked, told: BTreeMap::new() };
    // A count of parts is wanted for what is told of one of them.
    let counts_of_parts: BTreeSet<&String> =
        places.values().flat_map(|each| &each.0).filter_map(|place| place.per.as_ref()).collect();
    let (first, rest): (Vec<_>, Vec<_>) = places.iter().partition(|(key, _)| counts_of_parts.contains(key));
    for (key, places) in first.into_iter().chain(rest) {
        let (mut read, mut of_whom) = (None, None);
        for place in &places.0 {
            read = match (&place.fact, &place.log, &place.path) {
                (Some(fact), ..) => beside.facts.get(fact).cloned(),
                (_, Some(pattern), _) => log.as_deref().and_then(|text| in_log(text, pattern)),
                (_, _, Some(path)) => pages.get(path).await.and_then(|page| on_page(page, place)),
                (None, None, None) => None,
            };
            read = read.and_then(|value| parts.of_all(value, place));
            if read.is_some() {
                of_whom = Some(place);
                break;
            }
        }
        if let Some(count) = read.as_ref().and_then(Value::as_u64).filter(|_| counts_of_parts.contains(key)) {
            parts.told.insert(key.clone(), count);
        }
        let asked = match key.as_str() {
            DRAFT_ACTIVE => at(beside.asked, "speculative.method").map(|_| Value::Bool(true)),
            // Asked of each rank and, where it counts tokens, in tokens, as it is read.
            GRAPH_BATCH => at(beside.asked, key).and_then(|asked| match of_whom {
                Some(place) => parts.of_all(asked.clone(), place),
                None => Some(asked.clone()),
            }),
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

/// How many of a kind a server has: data-parallel ranks, and tokens that a request takes in a step.
struct Parts<'a> {
    asked: &'a Value,
    /// By the setting, as the server says.
    told: BTreeMap<String, u64>,
}

impl Parts<'_> {
    /// A value for one of several, for all of them; of tokens, for requests. `None`: nobody says how many there are.
    fn of_all(&self, value: Value, place: &Readback) -> Option<Value> {
        if place.per.is_none() && place.drafts.is_none() {
            return Some(value);
        }
        let parts = place.per.as_ref().map_or(Some(1), |per| self.number(per, 1))?;
        let drafts = place.drafts.as_ref().map_or(Some(0), |drafts| self.number(drafts, 0))?;
        Some((value.as_u64()? / drafts.saturating_add(1)).saturating_mul(parts).into())
    }

    /// What the profile asks for, else what the server says. A profile that does not speak of it, where the server does
    /// not either, leaves the engine's own default; without a profile it is not known.
    fn number(&self, setting: &str, default: u64) -> Option<u64> {
        let asked = at(self.asked, setting).and_then(Value::as_u64);
        asked.or_else(|| self.told.get(setting).copied()).or_else(|| self.asked.is_object().then_some(default))
    }
}

fn on_page(page: &Page, place: &Readback) -> Option<Value> {
    if let Some(pointer) = &place.present {
        let value = page.json.as_ref()?.pointer(pointer).unwrap_or(&Value::Null);
        return Some(Value::Bool(!matches!(value, Value::Null | Value::Bool(false)) && value != ""));
    }
    if let Some(pointer) = &place.pointer {
        return page.json.as_ref()?.pointer(pointer).filter(|value| !value.is_null()).cloned();
    }
    let regex = Regex::new(place.pattern.as_deref()?).ok()?;
    if place.count {
        let found: BTreeSet<&str> =
            regex.captures_iter(&page.text).filter_map(|groups| Some(groups.name("value")?.as_str())).collect();
        return (!found.is_empty()).then(|| Value::from(found.len() as u64));
    }
    in_text(&page.text, &regex)
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
        let parts = Parts { asked: &asked, told: BTreeMap::new() };
        let per = |per: &str| parts.of_all(json!(10), &place(&format!("{{fact: x, per: {per}}}")));
        assert_eq!((per("parallel.data"), per("parallel.tensor")), (Some(json!(20)), Some(json!(10))));
        let tokens = place("{fact: x, per: parallel.data, drafts: speculative.steps}");
        assert_eq!(parts.of_all(json!(512), &tokens), Some(json!(1024)), "without drafts a token is a request");
        let asked = json!({"parallel": {"data": 2}, "speculative": {"steps": 3}});
        let drafting = Parts { asked: &asked, told: BTreeMap::new() };
        assert_eq!(drafting.of_all(json!(512), &tokens), Some(json!(256)), "a request takes four tokens of a graph");
    }

    #[test]
    fn of_a_server_without_a_profile_it_counts_how_many_ranks_the_server_says_it_has() {
        let place = place("{fact: x, per: parallel.data}");
        let told = |ranks: Option<u64>| {
            let told = ranks.map(|ranks| ("parallel.data".to_owned(), ranks)).into_iter().collect();
            Parts { asked: &Value::Null, told }.of_all(json!(16), &place)
        };
        assert_eq!((told(Some(2)), told(None)), (Some(json!(32)), None));
        let of = |kind: EngineKind, text: &str| {
            let definition = engine::definition(kind, &[]).unwrap();
            let page = page(text);
            definition.readback["parallel.data"].0.iter().find_map(|place| on_page(&page, place))
        };
        assert_eq!(of(EngineKind::Sglang, r#"{"dp_size": 2}"#), Some(json!(2)));
        let engine = |name: &str, number: u64| format!("vllm:{name}{{engine=\"{number}\",model_name=\"m\"}} 0.0\n");
        let page =
            [engine("num_requests_running", 0), engine("num_requests_running", 1), engine("num_requests_waiting", 0)];
        assert_eq!(of(EngineKind::Vllm, &page.concat()), Some(json!(2)));
        assert_eq!(of(EngineKind::Vllm, "vllm:num_requests_running 0.0\n"), None, "an old one does not say");
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
