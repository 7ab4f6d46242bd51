//! A server of bytes: answers POSTs with what the test wrote down, at the times it wrote down, and notes what it was
//! asked. It knows no HTTP beyond reading a request.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use orch::clock::Clock;
use orch::load::{Measured, Options, Target, run_step};
use orch::profile::Prompt;
use orch::render::{Api, Arrival, Load, Step, Stop, Workload};
use tokio_util::sync::CancellationToken;

/// What a POST is answered with.
#[derive(Clone, Debug)]
pub(crate) struct Reply {
    pieces: Vec<(u64, Vec<u8>)>,
    then: Then,
}

/// What becomes of the connection after it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Then {
    /// It stays open for the next request.
    Keep,
    /// An orderly end.
    Close,
    /// It stays open and silent until the client goes.
    Hang,
}

impl Reply {
    /// Pieces at their milliseconds after the request was read; then the connection is closed.
    pub(crate) fn timed(pieces: Vec<(u64, Vec<u8>)>) -> Self {
        Reply { pieces, then: Then::Close }
    }

    /// Bytes at once.
    pub(crate) fn bytes(bytes: impl Into<Vec<u8>>, then: Then) -> Self {
        Reply { pieces: vec![(0, bytes.into())], then }
    }

    /// Closes the connection after it, although nothing says so.
    pub(crate) fn close(&mut self) {
        self.then = Then::Close;
    }

    /// Events as they are, each `gap_ms` after the one before.
    pub(crate) fn events(events: &[String], gap_ms: u64) -> Self {
        let head = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n";
        let chunk = |text: &String| format!("{:x}\r\n{text}\r\n", text.len()).into_bytes();
        let mut pieces = vec![(0, head.as_bytes().to_vec())];
        pieces.extend((1..).zip(events).map(|(n, event)| (n * gap_ms, chunk(event))));
        pieces.push((gap_ms * events.len() as u64, b"0\r\n\r\n".to_vec()));
        Reply { pieces, then: Then::Keep }
    }

    /// A stream of `tokens` words whose usage counts the prompt as one token a word and ten around them.
    pub(crate) fn counting(tokens: u64) -> Self {
        let mut text = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n".to_owned();
        for n in 0..tokens {
            text.push_str(&format!("data: {{\"choices\":[{{\"delta\":{{\"content\":\" w{n}\"}}}}]}}\n\n"));
        }
        text.push_str(&format!(
            "data: {{\"choices\":[{{\"delta\":{{}},\"finish_reason\":\"stop\"}}],\"usage\":{{\"prompt_tokens\":@PROMPT@,\
             \"completion_tokens\":{tokens}}}}}\n\ndata: [DONE]\n\n"
        ));
        Reply::bytes(text, Then::Close)
    }

    /// All of its bytes, whenever they come.
    pub(crate) fn whole(&self) -> Vec<u8> {
        self.pieces.iter().flat_map(|(_, bytes)| bytes.clone()).collect()
    }

    /// The same, so many milliseconds later, and kept open.
    pub(crate) fn delayed(mut self, ms: u64) -> Self {
        self.pieces.iter_mut().for_each(|(at, _)| *at += ms);
        self.then = Then::Keep;
        self
    }

    /// A good stream of `tokens` words with usage, ended by its framing.
    pub(crate) fn tokens(tokens: u64, gap_ms: u64) -> Self {
        let head = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n";
        let chunk = |text: String| format!("{:x}\r\n{text}\r\n", text.len()).into_bytes();
        let mut pieces = vec![(0, head.as_bytes().to_vec())];
        for n in 0..tokens {
            let event = format!("data: {{\"choices\":[{{\"index\":0,\"delta\":{{\"content\":\" w{n}\"}}}}]}}\n\n");
            pieces.push(((n + 1) * gap_ms, chunk(event)));
        }
        let usage = format!(
            "data: {{\"choices\":[{{\"delta\":{{}},\"finish_reason\":\"length\"}}]}}\n\ndata: {{\"choices\":[],\"usage\":\
             {{\"prompt_tokens\":3,\"completion_tokens\":{tokens}}}}}\n\ndata: [DONE]\n\n"
        );
        let last = [chunk(usage), b"0\r\n\r\n".to_vec()].concat();
        pieces.push((tokens * gap_ms, last));
        Reply { pieces, then: Then::Keep }
    }
}

/// A running server. Its threads end with the test's process.
pub(crate) struct Server {
    address: SocketAddr,
    seen: Arc<Mutex<Vec<String>>>,
}

impl Server {
    pub(crate) fn url(&self) -> String {
        format!("http://{}/v1", self.address)
    }

    /// The generating requests that came, head and body.
    pub(crate) fn posts(&self) -> Vec<String> {
        self.seen.lock().unwrap().iter().filter(|request| request.starts_with("POST ")).cloned().collect()
    }
}

/// Starts a server whose n-th POST is answered with the n-th reply, and all later ones with the last.
pub(crate) fn start(replies: Vec<Reply>) -> Server {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let seen = Arc::new(Mutex::new(Vec::new()));
    let posts = Arc::new(Mutex::new(0));
    let noted = seen.clone();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let (replies, noted, posts) = (replies.clone(), noted.clone(), posts.clone());
            std::thread::spawn(move || serve(stream.unwrap(), &replies, &noted, &posts));
        }
    });
    Server { address, seen }
}

fn serve(mut stream: TcpStream, replies: &[Reply], seen: &Mutex<Vec<String>>, posts: &Mutex<usize>) {
    stream.set_nodelay(true).unwrap();
    while let Some(request) = read_request(&mut stream) {
        let is_post = request.starts_with("POST ");
        let words = request.split_once("\r\n\r\n").map_or(0, |(_, body)| body.split(' ').count());
        seen.lock().unwrap().push(request);
        if !is_post {
            let models = r#"{"object":"list","data":[{"id":"the-model"}]}"#;
            let answer = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{models}", models.len());
            if stream.write_all(answer.as_bytes()).is_err() {
                return;
            }
            continue;
        }
        let reply = {
            let mut posts = posts.lock().unwrap();
            *posts += 1;
            replies[(*posts - 1).min(replies.len() - 1)].clone()
        };
        let began = Instant::now();
        for (at, bytes) in &reply.pieces {
            std::thread::sleep(Duration::from_millis(*at).saturating_sub(began.elapsed()));
            let bytes = counted(bytes, words);
            if stream.write_all(&bytes).is_err() {
                return;
            }
        }
        match reply.then {
            Then::Keep => {}
            Then::Close => {
                let _ = stream.shutdown(Shutdown::Write);
                return;
            }
            Then::Hang => {
                let _ = stream.read(&mut [0; 1]);
                return;
            }
        }
    }
}

/// Puts the number of the request's words, and ten for what stands around them, where a reply asks for it.
fn counted(bytes: &[u8], words: usize) -> Vec<u8> {
    match std::str::from_utf8(bytes) {
        Ok(text) => text.replace("@PROMPT@", &(words + 10).to_string()).into_bytes(),
        Err(_) => bytes.to_vec(),
    }
}

/// The next request, head and body; `None` when the client has gone.
fn read_request(stream: &mut TcpStream) -> Option<String> {
    let mut bytes = Vec::new();
    let mut buffer = [0; 4096];
    loop {
        if let Some(end) = bytes.windows(4).position(|four| four == b"\r\n\r\n") {
            let head = String::from_utf8_lossy(&bytes[..end]).into_owned();
            let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
            let length: usize = length.map_or(0, |length| length.parse().unwrap());
            if bytes.len() >= end + 4 + length {
                return Some(String::from_utf8(bytes).unwrap());
            }
        }
        match stream.read(&mut buffer) {
            Ok(0) | Err(_) => return None,
            Ok(count) => bytes.extend_from_slice(&buffer[..count]),
        }
    }
}

/// A step of a closed loop without warm-up.
pub(crate) fn step(name: &str, concurrency: u32, requests: Option<u64>) -> Step {
    step_of(name, concurrency, requests, true)
}

/// The same, with the endpoint to choose.
pub(crate) fn step_of(name: &str, concurrency: u32, requests: Option<u64>, chat: bool) -> Step {
    let prompts = (0..8).map(|n| Prompt { id: n.to_string(), text: format!("prompt {n}"), then: Vec::new() }).collect();
    Step {
        name: name.to_owned(),
        workload: Workload {
            name: "inline".to_owned(),
            hash: "sha256:0".to_owned(),
            api: if chat { Api::Chat } else { Api::Completions },
            prompts,
            stop: Stop::Natural { max_tokens: 16 },
            body: serde_json::Map::new(),
            cold_prefix: false,
            seed: 1,
            lengths: Default::default(),
            special: Default::default(),
        },
        load: Load { arrival: Arrival::Closed { concurrency }, requests, duration_s: None, warmup: Some(0) },
        goodput: None,
    }
}

/// Runs a step against the server.
pub(crate) fn run(server: &Server, step: &Step) -> Measured {
    run_with(&server.url(), step, &Options { keep_text: true, ..Options::default() })
}

/// Runs a step against an address.
pub(crate) fn run_with(url: &str, step: &Step, options: &Options) -> Measured {
    block_on(async {
        run_step(&target(url), step, &Clock::system(), &CancellationToken::new(), options, &mut |_| ()).await.unwrap()
    })
}

pub(crate) fn target(url: &str) -> Target {
    Target { base_url: url.to_owned(), model: Some("the-model".to_owned()), ..Target::default() }
}

pub(crate) fn block_on<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(future)
}
