//! The requests of a step, built before the first is sent, and the order in which prompts are drawn.

use std::borrow::Cow;
use std::fmt::Write;

use bytes::Bytes;
use rand::SeedableRng;
use rand::seq::SliceRandom;
use rand_chacha::ChaCha8Rng;
use serde_json::{Map, Value};

use super::body::{Ask, OWNED, body};
use super::lengths::{self, Vocabulary};
use super::salt::Salt;
use super::talk::Talk;
use super::url::Endpoint;
use super::{LoadError, Options, Part, Target};
use crate::profile::TraceRow;
use crate::render::{Api, Lengths, Stop, Workload};

/// The requests of a step.
#[derive(Debug)]
pub(super) struct Requests {
    source: Source,
    order: Order,
    salt: Salt,
    /// The heads of a request at each of the target's places, where there are several.
    heads: Vec<String>,
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
    Built { requests: Vec<(Bytes, Option<usize>)>, wanted_tokens: Option<u64> },
    /// Made when its turn comes, since each is unlike all others.
    Made(Box<Maker>),
}

/// What a request is made of that is like no other.
#[derive(Debug)]
struct Maker {
    head: String,
    /// Seed of the words of prompts.
    words: u64,
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
pub(super) const WARMUP: u64 = 1 << 48;

impl Requests {
    /// Builds them, or gets ready to.
    pub(super) fn build(
        target: &Target,
        endpoints: &[Endpoint],
        workload: &Workload,
        step: &str,
        options: &Options,
    ) -> Result<Self, LoadError> {
        let refuse = |why| LoadError::Step { step: step.to_owned(), why };
        if workload.prompts.is_empty() && lengths::shortest(workload).is_none() {
            return Err(refuse("its workload has no prompts"));
        }
        if lengths::shortest(workload).is_some() && options.vocabulary.is_none() {
            return Err(refuse("how the server counts prompts is not known"));
        }
        if workload.special.turns.is_some() && !matches!(workload.api, Api::Chat | Api::Responses) {
            return Err(refuse("a conversation needs the chat or the responses endpoint"));
        }
        if workload.special.turns.is_some() && workload.prompts.is_empty() {
            return Err(refuse("a conversation needs prompts that are given"));
        }
        if let Some(key) = workload.body.keys().find(|key| OWNED.contains(&key.as_str())) {
            return Err(LoadError::OwnedKey { key: key.clone() });
        }
        let path = path_of(workload.api);
        let head_at = |endpoint: &Endpoint| head(&endpoint.path(path), endpoint, &target.headers);
        let heads = endpoints.iter().map(head_at).collect::<Result<Vec<_>, _>>()?;
        let (Some(endpoint), Some(head)) = (endpoints.first(), heads.first().cloned()) else {
            return Err(refuse("it has no address"));
        };
        let (max_tokens, wanted_tokens) = match workload.stop {
            Stop::Exact { tokens } => (tokens, Some(tokens)),
            Stop::Natural { max_tokens } => (max_tokens, None),
        };
        let salt = Salt::new(workload.cold_prefix);
        let mut workload = workload.clone();
        salt.put(&mut workload.body);
        let order = Order::new(workload.prompts.len(), workload.seed);
        let api = workload.api;
        let plain = workload.lengths == Lengths::default()
            && workload.special.turns.is_none()
            && workload.special.trace.as_ref().is_none_or(|trace| trace.rows.iter().all(TraceRow::is_moment));
        let source = if plain {
            let requests = workload.prompts.iter().map(|prompt| {
                let ask = Ask::Prompt(&prompt.text);
                let bytes = whole(&head, &body(target, &workload, ask, workload.stop, options.ask_usage));
                let place = salt.place(&bytes);
                (bytes, place)
            });
            Source::Built { requests: requests.collect(), wanted_tokens }
        } else {
            Source::Made(Box::new(Maker {
                head,
                // The same prompts in the next step would come from the cache whole, and not only what is shared.
                words: workload.seed ^ workload.special.hit_ratio.map_or(0, |_| number_of(step)),
                target: target.clone(),
                workload,
                ask_usage: options.ask_usage,
                vocabulary: options.vocabulary.clone(),
            }))
        };
        Ok(Requests { source, order, salt, heads, max_tokens, api, url: endpoint.url(path) })
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
            Source::Built { requests, wanted_tokens } => {
                let (bytes, salt) = &requests[place()];
                let bytes = self.salt.fresh(bytes.clone(), *salt);
                Request { bytes, wanted_tokens: *wanted_tokens, wanted_input_tokens: None }
            }
            Source::Made(maker) => maker.make(number, &self.salt, place),
        }
    }

    /// A request as it is sent to the target's `place`.
    pub(super) fn at<'a>(&self, bytes: &'a [u8], place: usize) -> Cow<'a, [u8]> {
        let heads = self.heads.first().zip(self.heads.get(place)).filter(|_| place > 0);
        let body = heads.and_then(|(first, own)| Some((own, bytes.strip_prefix(first.as_bytes())?)));
        body.map_or(Cow::Borrowed(bytes), |(own, body)| Cow::Owned([own.as_bytes(), body].concat()))
    }

    /// How many turns a conversation has, where there are any.
    pub(super) fn turns(&self) -> Option<u64> {
        match &self.source {
            Source::Made(maker) => maker.workload.special.turns.map(u64::from),
            Source::Built { .. } => None,
        }
    }

    /// The next turn of a conversation; `None` when it is over.
    pub(super) fn turn(&self, talk: &mut Talk, part: Part) -> Option<Request> {
        let Source::Made(maker) = &self.source else { return None };
        let place = |number| match part {
            Part::Measured => self.order.measured(number),
            Part::Warmup => self.order.warmup(number),
        };
        talk.say(&maker.workload.prompts, self.turns()?, place)?;
        Some(maker.whole(Ask::Talk(talk.messages()), maker.workload.stop, None, &self.salt))
    }
}

/// A number out of a name, the same on every machine (FNV-1a).
fn number_of(name: &str) -> u64 {
    name.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}

impl Maker {
    fn make(&self, number: u64, salt: &Salt, place: impl FnOnce() -> usize) -> Request {
        let Maker { workload, vocabulary, .. } = self;
        let made = vocabulary.as_ref().and_then(|vocabulary| lengths::made(workload, vocabulary, number, self.words));
        let stop = lengths::output(workload, number).map_or(workload.stop, |tokens| Stop::Exact { tokens });
        let text = match &made {
            Some((_, text)) => text,
            None => &workload.prompts[place()].text,
        };
        self.whole(Ask::Prompt(text), stop, made.as_ref().map(|(tokens, _)| *tokens), salt)
    }

    fn whole(&self, ask: Ask<'_>, stop: Stop, wanted_input_tokens: Option<u64>, salt: &Salt) -> Request {
        let bytes = whole(&self.head, &body(&self.target, &self.workload, ask, stop, self.ask_usage));
        let place = salt.place(&bytes);
        Request {
            bytes: salt.fresh(bytes, place),
            wanted_tokens: match stop {
                Stop::Exact { tokens } => Some(tokens),
                Stop::Natural { .. } => None,
            },
            wanted_input_tokens,
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
    let mut body = body(target, workload, Ask::Prompt(prompt), workload.stop, true);
    Salt::new(false).put(&mut body);
    Ok(whole(&head, &body))
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
        Api::Responses => "/v1/responses",
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

    use serde_json::json;

    use super::*;
    use crate::profile::Prompt;

    fn workload(prompts: usize, stop: Stop) -> Workload {
        let prompts =
            (0..prompts).map(|n| Prompt { id: n.to_string(), text: format!("prompt {n}"), then: Vec::new() }).collect();
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
            special: Default::default(),
        }
    }

    fn target() -> Target {
        Target {
            base_url: "http://h:1/v1".to_owned(),
            model: Some("m".to_owned()),
            headers: vec![("Authorization".to_owned(), "Bearer x".to_owned())],
            ..Target::default()
        }
    }

    fn build(workload: &Workload) -> Result<Requests, LoadError> {
        Requests::build(&target(), &[Endpoint::parse("http://h:1/v1").unwrap()], workload, "s", &Options::default())
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
