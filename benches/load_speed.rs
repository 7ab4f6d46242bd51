//! How fast the client reads, beside two others: a *raw* reader that takes bytes off the socket and looks at none, and a
//! *trivial* one of hyper and serde_json that keeps nothing. Server and client have a core each.
//!
//! `cargo bench --bench load_speed`; a number after `--` says how often each course is tried (5). Exits with 1 when the
//! client reads less than 0.97 of what the trivial reader does, or takes more than half of its processor time beyond the
//! raw reader's. Medians over the tries are compared, since one try of any of them may be disturbed.
#![allow(clippy::print_stdout, reason = "a bench says what it measured")]
#![allow(clippy::unwrap_used, reason = "a bench that cannot run has nothing to say")]

use std::net::SocketAddr;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use http_body_util::{BodyExt, Full};
use hyper::body::Bytes;
use hyper_util::rt::TokioIo;
use orch::clock::Clock;
use orch::load::cores::Cores;
use orch::load::{Options, Target, run_step};
use orch::profile::Prompt;
use orch::render::{Api, Arrival, Lengths, Load, Step, Stop, Workload};
use orch::selftest::Pins;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio_util::sync::CancellationToken;

/// Tokens of an answer, one an event.
const TOKENS: u64 = 128;
/// Events of a write, where they are coalesced.
const COALESCED: usize = 16;

/// What a reader came to.
#[derive(Clone, Copy, Debug, Default)]
struct Speed {
    tokens_per_s: f64,
    /// Processor seconds for a million tokens.
    cpu_s: f64,
}

/// Which reader, against which server, how many streams, how many requests.
type Reader = fn(SocketAddr, usize, usize, Option<usize>) -> Speed;

fn main() -> ExitCode {
    let tries: usize = std::env::args().skip(1).find_map(|word| word.parse().ok()).unwrap_or(5);
    let pins = Pins::of_this_machine();
    println!("cores: {pins:?}; medians of {tries}\n");
    let readers: [(&str, Reader); 3] = [("raw", raw), ("trivial", trivial), ("orch", client)];
    let mut good = true;
    for streams in [64, 512] {
        for events in [1, COALESCED] {
            let address = serve(events, pins.map(|pins| pins.server));
            let requests = streams * if streams < 100 { 32 } else { 8 };
            let mut speeds: [Vec<Speed>; 3] = Default::default();
            for _ in 0..tries {
                for (speeds, (_, reader)) in speeds.iter_mut().zip(readers) {
                    speeds.push(reader(address, streams, requests, pins.map(|pins| pins.client)));
                }
            }
            let [raw, trivial, client] = speeds.map(|speeds| median(&speeds));
            println!("{streams} streams, {events} events a write");
            for ((name, _), speed) in readers.iter().zip([raw, trivial, client]) {
                println!(
                    "  {name:<8} {:>10.0} tokens/s {:>8.2} CPU-s a million tokens",
                    speed.tokens_per_s, speed.cpu_s
                );
            }
            let rate = client.tokens_per_s / trivial.tokens_per_s;
            let excess = (client.cpu_s - raw.cpu_s) / (trivial.cpu_s - raw.cpu_s);
            let within = rate >= 0.97 && excess <= 0.5;
            good &= within;
            let mark = if within { "ok" } else { "OUTSIDE" };
            println!("  rate {rate:.2} of the trivial reader's, CPU beyond raw {excess:.2} of its own  {mark}\n");
        }
    }
    println!("{}", if good { "within the limits" } else { "OUTSIDE THE LIMITS" });
    if good { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn median(speeds: &[Speed]) -> Speed {
    let middle = |value: fn(&Speed) -> f64| {
        let mut all: Vec<f64> = speeds.iter().map(value).collect();
        all.sort_by(f64::total_cmp);
        all[all.len() / 2]
    };
    Speed { tokens_per_s: middle(|speed| speed.tokens_per_s), cpu_s: middle(|speed| speed.cpu_s) }
}

/// Holds this thread to a core.
fn pin(core: Option<usize>) {
    let Some(core) = core else { return };
    let mut set = nix::sched::CpuSet::new();
    set.set(core).unwrap();
    nix::sched::sched_setaffinity(nix::unistd::Pid::from_raw(0), &set).unwrap();
}

fn thread_cpu() -> Duration {
    nix::time::clock_gettime(nix::time::ClockId::CLOCK_THREAD_CPUTIME_ID).unwrap().into()
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
}

/// A server at full speed: every POST is answered with the same stream, so many events a write.
fn serve(events: usize, core: Option<usize>) -> SocketAddr {
    let (sender, receiver) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        pin(core);
        runtime().block_on(async {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            sender.send(listener.local_addr().unwrap()).unwrap();
            let pieces: std::sync::Arc<[Vec<u8>]> = pieces(events).into();
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                tokio::spawn(answer(stream, pieces.clone()));
            }
        });
    });
    receiver.recv().unwrap()
}

/// The writes of an answer.
fn pieces(events: usize) -> Vec<Vec<u8>> {
    let chunk = |text: &str| format!("{:x}\r\n{text}\r\n", text.len());
    let delta = |more: &str| {
        format!(
            "data: {{\"id\":\"chatcmpl-1\",\"object\":\"chat.completion.chunk\",\"created\":1764500000,\"model\":\"m\",\"choices\":[{{\"index\":0,{more}}}]}}\n\n"
        )
    };
    let mut all = vec![chunk(&delta("\"delta\":{\"role\":\"assistant\",\"content\":\"\"},\"finish_reason\":null"))];
    all.extend(
        (0..TOKENS).map(|n| chunk(&delta(&format!("\"delta\":{{\"content\":\" word{n}\"}},\"finish_reason\":null")))),
    );
    let usage = format!(
        "data: {{\"id\":\"chatcmpl-1\",\"choices\":[],\"usage\":{{\"prompt_tokens\":9,\"completion_tokens\":{TOKENS}}}}}\n\n"
    );
    all.push(
        chunk(&delta("\"delta\":{},\"finish_reason\":\"length\""))
            + &chunk(&usage)
            + &chunk("data: [DONE]\n\n")
            + "0\r\n\r\n",
    );
    let mut pieces: Vec<Vec<u8>> = all.chunks(events).map(|chunks| chunks.concat().into_bytes()).collect();
    let head = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n";
    pieces[0].splice(0..0, head.bytes());
    pieces
}

async fn answer(mut stream: TcpStream, pieces: std::sync::Arc<[Vec<u8>]>) {
    stream.set_nodelay(true).unwrap();
    let mut read = Vec::new();
    loop {
        let end = loop {
            if let Some(end) = end_of_request(&read) {
                break end;
            }
            match stream.read_buf(&mut read).await {
                Ok(0) | Err(_) => return,
                Ok(_) => {}
            }
        };
        let is_post = read.starts_with(b"POST");
        read.drain(..end);
        if !is_post {
            if stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}").await.is_err() {
                return;
            }
            continue;
        }
        for piece in pieces.iter() {
            if stream.write_all(piece).await.is_err() {
                return;
            }
            // All streams go on together, as an engine's do.
            tokio::task::yield_now().await;
        }
    }
}

fn end_of_request(read: &[u8]) -> Option<usize> {
    let head = memchr::memmem::find(read, b"\r\n\r\n")? + 4;
    let text = std::str::from_utf8(&read[..head]).ok()?.to_ascii_lowercase();
    let length = text.split("content-length: ").nth(1).and_then(|rest| rest.split("\r\n").next()?.parse().ok());
    let end = head + length.unwrap_or(0);
    (read.len() >= end).then_some(end)
}

const BODY: &str = r#"{"model":"m","messages":[{"role":"user","content":"Count."}],"stream":true,"max_tokens":128}"#;

/// Runs `one` for each of so many streams on a thread of its own, and says how fast it was.
fn measured<F>(streams: usize, requests: usize, core: Option<usize>, one: impl Fn(usize) -> F + Send + 'static) -> Speed
where
    F: Future<Output = ()> + 'static,
{
    let thread = std::thread::spawn(move || {
        pin(core);
        let local = tokio::task::LocalSet::new();
        local.block_on(&runtime(), async {
            let (began, cpu) = (Instant::now(), thread_cpu());
            let tasks: Vec<_> = (0..streams).map(|_| tokio::task::spawn_local(one(requests / streams))).collect();
            for task in tasks {
                task.await.unwrap();
            }
            let tokens = (requests / streams * streams) as f64 * TOKENS as f64;
            let cpu = (thread_cpu() - cpu).as_secs_f64();
            Speed { tokens_per_s: tokens / began.elapsed().as_secs_f64(), cpu_s: cpu / tokens * 1e6 }
        })
    });
    thread.join().unwrap()
}

/// Bytes off the socket, and no look at any but the last five of a read.
fn raw(address: SocketAddr, streams: usize, requests: usize, core: Option<usize>) -> Speed {
    measured(streams, requests, core, move |count| async move {
        let mut stream = TcpStream::connect(address).await.unwrap();
        stream.set_nodelay(true).unwrap();
        let request =
            format!("POST /v1/chat/completions HTTP/1.1\r\nhost: h\r\ncontent-length: {}\r\n\r\n{BODY}", BODY.len());
        let mut buffer = vec![0; 64 << 10];
        for _ in 0..count {
            stream.write_all(request.as_bytes()).await.unwrap();
            loop {
                let read = stream.read(&mut buffer).await.unwrap();
                if read == 0 || buffer[..read].ends_with(b"0\r\n\r\n") {
                    break;
                }
            }
        }
    })
}

/// hyper, every event through serde_json, nothing kept.
fn trivial(address: SocketAddr, streams: usize, requests: usize, core: Option<usize>) -> Speed {
    measured(streams, requests, core, move |count| async move {
        let stream = TcpStream::connect(address).await.unwrap();
        stream.set_nodelay(true).unwrap();
        let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.unwrap();
        tokio::task::spawn_local(async move {
            let _ = connection.await;
        });
        let mut tokens = 0;
        for _ in 0..count {
            let request = hyper::Request::post("/v1/chat/completions").header("host", "h");
            let request = request.body(Full::new(Bytes::from_static(BODY.as_bytes()))).unwrap();
            let mut body = sender.send_request(request).await.unwrap().into_body();
            let mut held: Vec<u8> = Vec::new();
            while let Some(frame) = body.frame().await {
                let Ok(data) = frame.unwrap().into_data() else { continue };
                held.extend_from_slice(&data);
                let mut from = 0;
                while let Some(end) = memchr::memmem::find(&held[from..], b"\n\n") {
                    let event = held[from..from + end].strip_prefix(b"data: ").unwrap();
                    from += end + 2;
                    if event == b"[DONE]" {
                        continue;
                    }
                    let value: serde_json::Value = serde_json::from_slice(event).unwrap();
                    let text = value.pointer("/choices/0/delta/content").and_then(serde_json::Value::as_str);
                    tokens += u64::from(text.is_some_and(|text| !text.is_empty()));
                }
                held.drain(..from);
            }
        }
        assert_eq!(tokens, count as u64 * TOKENS, "the trivial reader has read it all");
    })
}

/// This program's own client, with every moment noted.
fn client(address: SocketAddr, streams: usize, requests: usize, core: Option<usize>) -> Speed {
    let prompts = vec![Prompt { id: "a".to_owned(), text: "Count.".to_owned(), then: Vec::new() }];
    let stop = Stop::Natural { max_tokens: TOKENS };
    let step = Step {
        name: "speed".to_owned(),
        workload: Workload::plain("speed", Api::Chat, prompts, stop, 0, Lengths::default()),
        load: Load {
            arrival: Arrival::Closed { concurrency: u32::try_from(streams).unwrap() },
            requests: Some(requests as u64),
            duration_s: None,
            warmup: Some(0),
        },
        goodput: None,
    };
    let target = Target { base_url: format!("http://{address}"), model: Some("m".to_owned()), ..Target::default() };
    let cores = core.map(Cores::one).unwrap_or_default();
    let options = Options { cores, ..Options::default() };
    let (clock, never) = (Clock::system(), CancellationToken::new());
    let mut unheard = |_: orch::load::Progress<'_>| ();
    let running = run_step(&target, &step, &clock, &never, &options, &mut unheard);
    let measured = runtime().block_on(running).unwrap();
    let tokens: u64 = measured.timelines.iter().map(|timeline| timeline.output_tokens().0).sum();
    assert_eq!(tokens, requests as u64 * TOKENS, "the client has read it all");
    assert!(measured.timelines.iter().all(|timeline| timeline.chunks.len() as u64 == TOKENS));
    let span = (measured.ended - measured.began) as f64 / 1e9;
    Speed { tokens_per_s: tokens as f64 / span, cpu_s: measured.cpu.unwrap() as f64 / 1e9 / tokens as f64 * 1e6 }
}
