//! The requests of a step, built before the first is sent, and the order in which prompts are drawn.

use std::fmt::Write;

use bytes::Bytes;
use rand::SeedableRng;
use rand::seq::SliceRandom;
use rand_chacha::ChaCha8Rng;
use serde_json::{Map, Value, json};

use super::lengths::{self, Vocabulary};
use super::url::Endpoint;
use super::{LoadError, Options, Target};
use crate::render::{Api, Lengths, Stop, Workload};

/// Keys of the body that the load must set itself, or the measurement would not be what it says.
const OWNED: [&str; 10] = [
    "model",
    "messages",
    "prompt",
    "text",
    "stream",
    "max_tokens",
    "max_new_tokens",
    "n_predict",
    "sampling_params",
    "ignore_eos",
];

/// The requests of a step.
#[derive(Debug)]
pub(super) struct Requests {
    source: Source,
    order: Order,
    /// At most so many tokens an answer.
    pub(super) max_tokens: u64,
    /// Which endpoint.
    pub(super) api: Api,
    /// The path that is asked, for people.
    pub(super) url: String,
}

/// Where the bytes of a request come from.
#[derive(Debug)]
enum Source {
    /// Built before the first is sent, one for each prompt.
    Built { bytes: Vec<Bytes>, wanted_tokens: Option<u64> },
    /// Made when its turn comes, since each is unlike all others.
    Made(Box<Maker>),
}

/// What a request is made of whose lengths are drawn.
#[derive(Debug)]
struct Maker {
    head: String,
    target: Target,
    workload: Workload,
    ask_usage: bool,
    vocabulary: Option<Vocabulary>,
}

/// A request, ready to send.
#[derive(Clone, Debug)]
pub(super) struct Request {
    /// Head and body.
    pub(super) bytes: Bytes,
    /// The length that its answer must have, when it is to be exact.
    pub(super) wanted_tokens: Option<u64>,
    /// The length that its prompt was made to have.
    pub(super) wanted_input_tokens: Option<u64>,
}

/// Numbers of warm-up requests are kept apart from the measured ones by this, where something is drawn for them.
const WARMUP: u64 = 1 << 48;

impl Requests {
    /// Builds them, or gets ready to.
    pub(super) fn build(
        target: &Target,
        endpoint: &Endpoint,
        workload: &Workload,
        step: &str,
        options: &Options,
    ) -> Result<Self, LoadError> {
        let refuse = |why| LoadError::Step { step: step.to_owned(), why };
        let lengths = &workload.lengths;
        if workload.prompts.is_empty() && lengths.input.is_none() {
            return Err(refuse("its workload has no prompts"));
        }
        if lengths.input.is_some() && options.vocabulary.is_none() {
            return Err(refuse("how the server counts prompts is not known"));
        }
        if let Some(key) = workload.body.keys().find(|key| OWNED.contains(&key.as_str())) {
            return Err(LoadError::OwnedKey { key: key.clone() });
        }
        let path = path_of(workload.api);
        let head = head(&endpoint.path(path), endpoint, &target.headers)?;
        let (max_tokens, wanted_tokens) = match workload.stop {
            Stop::Exact { tokens } => (tokens, Some(tokens)),
            Stop::Natural { max_tokens } => (max_tokens, None),
        };
        let source = if *lengths == Lengths::default() {
            let bytes = workload
                .prompts
                .iter()
                .map(|prompt| whole(&head, &body(target, workload, &prompt.text, workload.stop, options.ask_usage)));
            Source::Built { bytes: bytes.collect(), wanted_tokens }
        } else {
            Source::Made(Box::new(Maker {
                head,
                target: target.clone(),
                workload: workload.clone(),
                ask_usage: options.ask_usage,
                vocabulary: options.vocabulary.clone(),
            }))
        };
        Ok(Requests {
            source,
            order: Order::new(workload.prompts.len(), workload.seed),
            max_tokens,
            api: workload.api,
            url: endpoint.url(path),
        })
    }

    /// The measured request `number`.
    pub(super) fn measured(&self, number: u64) -> Request {
        self.request(number, || self.order.measured(number))
    }

    /// The warm-up request `number`.
    pub(super) fn warmup(&self, number: u64) -> Request {
        self.request(WARMUP + number, || self.order.warmup(number))
    }

    fn request(&self, number: u64, place: impl FnOnce() -> usize) -> Request {
        match &self.source {
            Source::Built { bytes, wanted_tokens } => {
                let bytes = bytes[place()].clone();
                Request { bytes, wanted_tokens: *wanted_tokens, wanted_input_tokens: None }
            }
            Source::Made(maker) => maker.make(number, place),
        }
    }
}

impl Maker {
    fn make(&self, number: u64, place: impl FnOnce() -> usize) -> Request {
        let Maker { head, target, workload, ask_usage, vocabulary } = self;
        let made = vocabulary.as_ref().and_then(|vocabulary| lengths::made(workload, vocabulary, number));
        let stop = lengths::output(workload, number).map_or(workload.stop, |tokens| Stop::Exact { tokens });
        let text = match &made {
            Some((_, text)) => text,
            None => &workload.prompts[place()].text,
        };
        Request {
            bytes: whole(head, &body(target, workload, text, stop, *ask_usage)),
            wanted_tokens: match stop {
                Stop::Exact { tokens } => Some(tokens),
                Stop::Natural { .. } => None,
            },
            wanted_input_tokens: made.map(|(tokens, _)| tokens),
        }
    }
}

fn whole(head: &str, body: &Map<String, Value>) -> Bytes {
    // A map of JSON values can always be written.
    let body = serde_json::to_string(body).unwrap_or_default();
    Bytes::from(format!("{head}content-length: {}\r\n\r\n{body}", body.len()))
}

/// The bytes of one generating request for `prompt`, outside of any order.
pub(super) fn one(target: &Target, endpoint: &Endpoint, workload: &Workload, prompt: &str) -> Result<Bytes, LoadError> {
    let head = head(&endpoint.path(path_of(workload.api)), endpoint, &target.headers)?;
    Ok(whole(&head, &body(target, workload, prompt, workload.stop, true)))
}

/// The bytes of a POST of `body` to `path`.
pub(super) fn post(
    path: &str,
    endpoint: &Endpoint,
    headers: &[(String, String)],
    body: &str,
) -> Result<Bytes, LoadError> {
    let head = head(&endpoint.path(path), endpoint, headers)?;
    Ok(Bytes::from(format!("{head}content-length: {}\r\n\r\n{body}", body.len())))
}

/// The path of an endpoint, behind the base.
pub fn path_of(api: Api) -> &'static str {
    match api {
        Api::Chat => "/v1/chat/completions",
        Api::Completions => "/v1/completions",
        Api::Generate => "/generate",
        Api::Completion => "/completion",
    }
}

fn head(path: &str, endpoint: &Endpoint, headers: &[(String, String)]) -> Result<String, LoadError> {
    let mut head = format!(
        "POST {path} HTTP/1.1\r\nhost: {}\r\nuser-agent: orch/{}\r\ncontent-type: application/json\r\n\
         accept: text/event-stream\r\naccept-encoding: identity\r\n",
        endpoint.authority,
        env!("CARGO_PKG_VERSION")
    );
    write_headers(&mut head, headers)?;
    Ok(head)
}

/// The bytes of a GET, for warming a connection.
pub(super) fn get(path: &str, endpoint: &Endpoint, headers: &[(String, String)]) -> Result<Bytes, LoadError> {
    let mut head = format!(
        "GET {path} HTTP/1.1\r\nhost: {}\r\nuser-agent: orch/{}\r\naccept: application/json\r\n\
         accept-encoding: identity\r\n",
        endpoint.authority,
        env!("CARGO_PKG_VERSION")
    );
    write_headers(&mut head, headers)?;
    head.push_str("\r\n");
    Ok(Bytes::from(head))
}

fn write_headers(head: &mut String, headers: &[(String, String)]) -> Result<(), LoadError> {
    for (name, value) in headers {
        let fail = |why| LoadError::Header { name: name.clone(), why };
        let is_token = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
        if name.is_empty() || !name.bytes().all(is_token) {
            return Err(fail("its name is not a word of HTTP"));
        }
        if value.chars().any(|c| c.is_control() && c != '\t') {
            return Err(fail("its value holds a control character"));
        }
        let name = name.to_ascii_lowercase();
        if ["host", "content-length", "transfer-encoding", "connection", "accept-encoding"].contains(&name.as_str()) {
            return Err(fail("the load sets it itself"));
        }
        let _ = write!(head, "{name}: {value}\r\n");
    }
    Ok(())
}

fn body(target: &Target, workload: &Workload, prompt: &str, stop: Stop, ask_usage: bool) -> Map<String, Value> {
    let (most, exact) = match stop {
        Stop::Natural { max_tokens } => (max_tokens, false),
        Stop::Exact { tokens } => (tokens, true),
    };
    match workload.api {
        Api::Chat | Api::Completions => open_ai(target, workload, prompt, (most, exact), ask_usage),
        Api::Generate => {
            let mut sampling = workload.body.clone();
            sampling.insert("max_new_tokens".to_owned(), json!(most));
            if exact {
                sampling.insert("ignore_eos".to_owned(), json!(true));
            }
            fields([("text", json!(prompt)), ("sampling_params", Value::Object(sampling)), ("stream", json!(true))])
        }
        Api::Completion => {
            let mut body = fields([("prompt", json!(prompt)), ("n_predict", json!(most)), ("stream", json!(true))]);
            if exact {
                body.insert("ignore_eos".to_owned(), json!(true));
            }
            body.extend(workload.body.clone());
            body
        }
    }
}

fn fields<const N: usize>(fields: [(&str, Value); N]) -> Map<String, Value> {
    fields.into_iter().map(|(key, value)| (key.to_owned(), value)).collect()
}

fn open_ai(
    target: &Target,
    workload: &Workload,
    prompt: &str,
    (most, exact): (u64, bool),
    ask_usage: bool,
) -> Map<String, Value> {
    let mut body = Map::new();
    if let Some(model) = &target.model {
        body.insert("model".to_owned(), json!(model));
    }
    match workload.api {
        Api::Chat => body.insert("messages".to_owned(), json!([{"role": "user", "content": prompt}])),
        _ => body.insert("prompt".to_owned(), json!(prompt)),
    };
    body.insert("stream".to_owned(), json!(true));
    body.insert("max_tokens".to_owned(), json!(most));
    if exact {
        body.insert("ignore_eos".to_owned(), json!(true));
    }
    body.extend(workload.body.clone());
    if ask_usage {
        let options = body.entry("stream_options").or_insert_with(|| json!({}));
        if let Some(options) = options.as_object_mut() {
            options.entry("include_usage").or_insert(json!(true));
        }
    }
    body
}

/// The order in which prompts are drawn: shuffled by the seed, none twice before all were drawn, then shuffled afresh.
///
/// The measured requests take it from the front and the warm-up from the back, so that a longer warm-up changes nothing
/// about what is measured, and no prompt is warmed before it is measured while there are prompts enough.
#[derive(Debug)]
struct Order {
    count: u64,
    seed: u64,
    first: Vec<usize>,
    /// A later round, and which; rounds are asked for in order.
    later: std::sync::Mutex<(u64, Vec<usize>)>,
}

impl Order {
    fn new(count: usize, seed: u64) -> Self {
        Order {
            count: count as u64,
            seed,
            first: shuffled(count, seed, 0),
            later: std::sync::Mutex::new((0, Vec::new())),
        }
    }

    fn measured(&self, number: u64) -> usize {
        let (round, place) = (number / self.count, (number % self.count) as usize);
        if round == 0 {
            return self.first[place];
        }
        let mut later = self.later.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        if later.0 != round {
            *later = (round, shuffled(self.first.len(), self.seed, round));
        }
        later.1[place]
    }

    fn warmup(&self, number: u64) -> usize {
        self.first[(self.count - 1 - number % self.count) as usize]
    }
}

fn shuffled(count: usize, seed: u64, round: u64) -> Vec<usize> {
    let mut generator = ChaCha8Rng::seed_from_u64(seed);
    generator.set_stream(round);
    let mut order: Vec<usize> = (0..count).collect();
    order.shuffle(&mut generator);
    order
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::profile::Prompt;

    fn workload(prompts: usize, stop: Stop) -> Workload {
        let prompts = (0..prompts).map(|n| Prompt { id: n.to_string(), text: format!("prompt {n}") }).collect();
        Workload {
            name: "inline".to_owned(),
            hash: String::new(),
            api: Api::Chat,
            prompts,
            stop,
            body: Map::new(),
            cold_prefix: false,
            seed: 7,
            lengths: Lengths::default(),
        }
    }

    fn target() -> Target {
        Target {
            base_url: "http://h:1/v1".to_owned(),
            model: Some("m".to_owned()),
            headers: vec![("Authorization".to_owned(), "Bearer x".to_owned())],
        }
    }

    fn build(workload: &Workload) -> Result<Requests, LoadError> {
        Requests::build(&target(), &Endpoint::parse("http://h:1/v1").unwrap(), workload, "s", &Options::default())
    }

    fn sent_body(requests: &Requests, number: u64) -> Value {
        let bytes = requests.measured(number).bytes;
        let at = memchr::memmem::find(&bytes, b"\r\n\r\n").unwrap();
        serde_json::from_slice(&bytes[at + 4..]).unwrap()
    }

    #[test]
    fn a_request_is_complete_and_says_what_the_workload_says() {
        let mut workload = workload(1, Stop::Exact { tokens: 32 });
        workload.body.insert("temperature".to_owned(), json!(0));
        workload.body.insert("stream_options".to_owned(), json!({"continuous_usage_stats": true}));
        let requests = build(&workload).unwrap();
        let text = String::from_utf8(requests.measured(0).bytes.to_vec()).unwrap();
        assert!(text.starts_with("POST /v1/chat/completions HTTP/1.1\r\nhost: h:1\r\n"));
        assert!(text.contains("\r\nauthorization: Bearer x\r\n"));
        let body = text.split_once("\r\n\r\n").unwrap().1;
        assert!(text.contains(&format!("\r\ncontent-length: {}\r\n", body.len())));
        assert_eq!(
            sent_body(&requests, 0),
            json!({"model": "m", "messages": [{"role": "user", "content": "prompt 0"}], "stream": true, "max_tokens": 32,
                "ignore_eos": true, "temperature": 0, "stream_options": {"continuous_usage_stats": true, "include_usage": true}})
        );
        assert_eq!(
            (requests.measured(0).wanted_tokens, requests.url.as_str()),
            (Some(32), "http://h:1/v1/chat/completions")
        );
    }

    #[test]
    fn prompts_are_drawn_by_the_seed_and_none_twice_before_all() {
        let requests = build(&workload(20, Stop::Natural { max_tokens: 5 })).unwrap();
        let drawn: Vec<_> = (0..40).map(|n| requests.order.measured(n)).collect();
        for round in drawn.chunks(20) {
            assert_eq!(round.iter().collect::<BTreeSet<_>>().len(), 20);
        }
        assert_ne!(drawn[..20], drawn[20..]);
        let again = build(&workload(20, Stop::Natural { max_tokens: 5 })).unwrap();
        assert_eq!(drawn, (0..40).map(|n| again.order.measured(n)).collect::<Vec<_>>());
        let warmed: BTreeSet<_> = (0..8).map(|n| requests.order.warmup(n)).collect();
        assert!(drawn[..12].iter().all(|prompt| !warmed.contains(prompt)));
    }

    #[test]
    fn what_the_load_must_set_itself_is_refused() {
        let mut with_stream = workload(1, Stop::Natural { max_tokens: 5 });
        with_stream.body.insert("stream".to_owned(), json!(false));
        assert!(matches!(build(&with_stream), Err(LoadError::OwnedKey { .. })));
        assert!(matches!(build(&workload(0, Stop::Natural { max_tokens: 5 })), Err(LoadError::Step { .. })));
        let endpoint = Endpoint::parse("http://h").unwrap();
        for header in [("x y", "a"), ("x", "a\r\nb: c"), ("Content-Length", "3"), ("", "a")] {
            let headers = [(header.0.to_owned(), header.1.to_owned())];
            assert!(get("/", &endpoint, &headers).is_err(), "{header:?}");
        }
    }
}
