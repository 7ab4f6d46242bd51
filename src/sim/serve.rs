//! The server: connections, the way each request goes, and how it all ends.

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::rc::Rc;
use std::time::Duration;

use tokio::net::{TcpListener, TcpSocket, lookup_host};
use tokio::signal::unix::{SignalKind, signal};
use tokio::task::spawn_local;

use super::answer::{self, Then};
use super::asked::Route;
use super::engine::{Engine, Happening, Log};
use super::http::{Connection, NoRequest, Request, answer};
use super::ledger::Ledger;
use super::pace::Pacer;
use super::pages;
use super::scenario::{Broken, Drain, Played, Scenario};

/// A thousand clients at once do not overflow it.
const BACKLOG: u32 = 4096;

/// Where and how it serves, beside its scenario.
pub struct Options {
    /// The address to listen at, a name or a number.
    pub host: String,
    /// The port.
    pub port: u16,
    /// Where the ledger goes.
    pub ledger: Option<PathBuf>,
    /// Takes what happens.
    pub log: Log,
}

/// A simulated engine that is about to serve. It belongs to one thread and needs a `LocalSet` around it.
pub struct Server {
    engine: Rc<Engine>,
    options: Options,
    listener: Option<TcpListener>,
    /// The port alone, before anything listens at it.
    held: Option<TcpSocket>,
    /// Takes connections.
    accepting: Option<tokio::task::JoinHandle<()>>,
}

/// Why it cannot serve.
#[derive(Debug, thiserror::Error)]
pub enum SimError {
    /// The port cannot be had.
    #[error("cannot listen at {host}:{port}: {error}")]
    Listen {
        /// The address,
        host: String,
        /// the port,
        port: u16,
        /// and why.
        error: io::Error,
    },
    /// The ledger cannot be written.
    #[error("cannot write the ledger `{path}`: {error}")]
    Ledger {
        /// Its path,
        path: String,
        /// and why.
        error: io::Error,
    },
    /// Something else that the system refused.
    #[error("cannot serve: {0}")]
    System(#[from] io::Error),
}

impl Server {
    /// Makes a server that does not listen yet.
    pub fn new(scenario: Scenario, options: Options) -> Result<Self, SimError> {
        let ledger = match &options.ledger {
            Some(path) => {
                Ledger::create(path).map_err(|error| SimError::Ledger { path: path.display().to_string(), error })?
            }
            None => Ledger::default(),
        };
        let engine = Engine::new(scenario, Pacer::start()?, ledger, Rc::clone(&options.log));
        Ok(Server { engine, options, listener: None, held: None, accepting: None })
    }

    /// Listens. llama.cpp does so before its model is loaded and answers 503 until [`Server::ready`]; connections are
    /// answered from [`Server::serve`] or [`Server::answer_meanwhile`] on.
    pub async fn listen(&mut self) -> Result<(), SimError> {
        if self.listener.is_some() || self.accepting.is_some() {
            return Ok(());
        }
        self.listener = Some(match self.held.take() {
            Some(held) => held.listen(BACKLOG).map_err(|error| self.refused(error))?,
            None => self.bind().await?,
        });
        self.options.port = self.port()?;
        Ok(())
    }

    /// Takes the port without listening, as vLLM does: others can no longer have it, and connections are refused.
    pub async fn hold(&mut self) -> Result<(), SimError> {
        if self.listener.is_some() || self.held.is_some() {
            return Ok(());
        }
        let address = self.address().await?;
        let taken = || {
            let socket = if address.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
            // Or connections of its own that have just ended would keep it from coming back after a restart.
            socket.set_reuseaddr(true)?;
            socket.bind(address)?;
            Ok(socket)
        };
        self.held = Some(taken().map_err(|error| self.refused(error))?);
        Ok(())
    }

    /// The port that it listens at.
    pub fn port(&self) -> Result<u16, SimError> {
        match &self.listener {
            Some(listener) => Ok(listener.local_addr()?.port()),
            None => Ok(self.options.port),
        }
    }

    fn refused(&self, error: io::Error) -> SimError {
        SimError::Listen { host: self.options.host.clone(), port: self.options.port, error }
    }

    async fn address(&self) -> Result<SocketAddr, SimError> {
        let Options { host, port, .. } = &self.options;
        let found = lookup_host((host.as_str(), *port)).await.map_err(|error| self.refused(error))?.next();
        found.ok_or_else(|| self.refused(io::ErrorKind::AddrNotAvailable.into()))
    }

    /// Answers connections while something else goes on, such as the start.
    pub fn answer_meanwhile(&mut self) {
        if let Some(listener) = self.listener.take() {
            let engine = Rc::clone(&self.engine);
            self.accepting = Some(spawn_local(accept(engine, listener)));
        }
    }

    /// From now on it has loaded its model.
    pub fn ready(&self) {
        self.engine.ready.set(true);
    }

    async fn bind(&self) -> Result<TcpListener, SimError> {
        let address = self.address().await?;
        listen_at(address).map_err(|error| self.refused(error))
    }

    /// Serves until it is told to stop or ends as the scenario says; the result is the exit code.
    pub async fn serve(mut self) -> Result<u8, SimError> {
        self.listen().await?;
        self.ready();
        let port = self.port()?;
        (self.engine.log)(Happening::Listening { host: self.options.host.clone(), port, seed: self.engine.seed });
        self.options.port = port;
        spawn_local(tell(Rc::clone(&self.engine)));
        let (mut term, mut int) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
        let ignore = self.engine.scenario.stop.ignore_term;
        self.answer_meanwhile();
        loop {
            let asked = tokio::select! {
                _ = term.recv() => true,
                _ = int.recv() => true,
                code = self.engine.death() => return Ok(self.leave(code).await),
                length = self.engine.watch() => {
                    if let Some(task) = self.accepting.take() {
                        task.abort();
                        let _ = task.await;
                    }
                    self.engine.restart();
                    tokio::time::sleep(length).await;
                    let listener = self.bind().await?;
                    self.accepting = Some(spawn_local(accept(Rc::clone(&self.engine), listener)));
                    false
                }
            };
            if asked && !ignore {
                break;
            }
        }
        (self.engine.log)(Happening::Stopping { remaining: self.engine.active() });
        self.engine.draining.set(true);
        match self.engine.scenario.drain() {
            Drain::None => {}
            Drain::Forever => self.engine.idle().await,
            Drain::For(span) => {
                // What runs longer is cut off.
                let _ = tokio::time::timeout(span, self.engine.idle()).await;
            }
        }
        let code = self.engine.scenario.stop.code;
        Ok(self.leave(code).await)
    }

    /// Ends all connections and sees the ledger to its end.
    async fn leave(self, code: u8) -> u8 {
        self.engine.end_life();
        self.engine.idle().await;
        self.engine.ledger.sync();
        code
    }
}

/// Listens with a queue that a thousand clients at once do not overflow.
fn listen_at(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

/// Says once a second how it goes, while anything does.
async fn tell(engine: Rc<Engine>) {
    loop {
        tokio::time::sleep(Duration::from_secs(1)).await;
        if engine.admission.borrow().running() > 0 {
            (engine.log)(engine.decode());
        }
    }
}

async fn accept(engine: Rc<Engine>, listener: TcpListener) {
    loop {
        match listener.accept().await {
            Ok((stream, _)) => {
                let engine = Rc::clone(&engine);
                spawn_local(async move {
                    let life = engine.life();
                    tokio::select! {
                        biased;
                        () = life.cancelled() => {}
                        () = converse(&engine, Connection::new(stream)) => {}
                    }
                });
            }
            // Too many open files, most likely: others end, and then it goes on.
            Err(_) => tokio::time::sleep(Duration::from_millis(50)).await,
        }
    }
}

/// The requests of one connection.
async fn converse(engine: &Rc<Engine>, mut connection: Connection) {
    loop {
        let request = match connection.request().await {
            Ok(request) => request,
            Err(NoRequest::Gone) => return,
            Err(NoRequest::Bad(status, message)) => {
                let (status, kind, text) = pages::error(engine, status, message);
                let _ = connection.write(&answer(status, kind, "connection: close\r\n", text.as_bytes())).await;
                return;
            }
        };
        match respond(engine, &mut connection, request).await {
            Then::Keep => {}
            Then::Close => return,
            Then::Reset => return connection.reset(),
        }
    }
}

async fn respond(engine: &Rc<Engine>, connection: &mut Connection, request: Request) -> Then {
    let keep = if request.keep { Then::Keep } else { Then::Close };
    let page = match engine.scenario.serve.endpoints.get(&request.path) {
        Some(Broken::Hang) => {
            connection.gone().await;
            return Then::Close;
        }
        Some(Broken::Absent) => pages::error(engine, 404, "Not Found"),
        Some(Broken::Error) => pages::error(engine, 500, "Internal Server Error"),
        Some(Broken::Nonsense) => (200, "text/html", "<!doctype html><title>Welcome</title>".to_owned()),
        None => {
            let route = Route::of(&request.path, engine.played()).filter(|_| request.method == "POST");
            match route {
                Some(route) if engine.ready.get() => {
                    // Whoever else has sent a request is read first, so that a crowd arrives when it does and not when
                    // the answers before it have been prepared.
                    tokio::task::yield_now().await;
                    return answer::generate(engine, connection, route, request).await;
                }
                _ => pages::page(engine, &request.method, &request.path, &request.query, &request.body),
            }
        }
    };
    let (status, kind, text) = page;
    // SGLang proves its health by a generated token, which a stalled engine does not give.
    if request.path.starts_with("/health") && engine.played() == Played::Sglang && engine.ready.get() {
        let now = super::pace::now();
        let due = engine.after_pauses(now);
        engine.pacer.until(due).await;
    }
    match connection.write(&answer(status, kind, "", text.as_bytes())).await {
        Ok(_) => keep,
        Err(_) => Then::Close,
    }
}
