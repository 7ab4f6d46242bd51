//! Connecting from inside a host that only runs programs: one that is there anyway relays its standard streams.

use std::io;

use tokio::io::AsyncReadExt;

use super::pipe::Pipe;
use super::{Address, BoxedIo, HostError, Words};

/// `kind address port`. The first line says what came of it.
const PYTHON: &str = r#"import os,socket,sys,threading
k,a,p=sys.argv[1:4]
try:
    if k=="unix":
        s=socket.socket(socket.AF_UNIX);s.connect(a)
    else:
        s=socket.create_connection((a,int(p)),30);s.settimeout(None);s.setsockopt(socket.IPPROTO_TCP,socket.TCP_NODELAY,1)
except OSError as e:
    os.write(1,("no %s %s\n"%(e.errno or 0,e.strerror or e)).encode());sys.exit(1)
os.write(1,b"yes\n")
def up():
    try:
        while True:
            b=os.read(0,65536)
            if not b: break
            s.sendall(b)
        s.shutdown(socket.SHUT_WR)
    except OSError: pass
threading.Thread(target=up,daemon=True).start()
while True:
    b=s.recv(65536)
    if not b: break
    v=memoryview(b)
    while v: v=v[os.write(1,v):]
"#;

/// Takes the first relay that is there. Only Python can say why a connection fails; with the others it ends at once.
const RELAY: &str = r#"if command -v python3 >/dev/null 2>&1; then exec python3 -c "$1" "$2" "$3" "$4"; fi
if command -v socat >/dev/null 2>&1; then echo yes; if [ "$2" = unix ]; then exec socat - "UNIX-CONNECT:$3"; fi; exec socat - "TCP:$3:$4"; fi
if command -v nc >/dev/null 2>&1; then echo yes; if [ "$2" = unix ]; then exec nc -U "$3"; fi; exec nc "$3" "$4"; fi
echo none"#;

/// A first line of more than this is none of ours.
const LONGEST_LINE: usize = 1000;

/// Connects by a program on the host.
pub(super) async fn connect<P: Pipe>(host: &P, to: &Address) -> Result<BoxedIo, HostError> {
    let failed = |source| HostError::CannotConnect { address: to.to_string(), source };
    let (kind, address, port) = match to {
        Address::Tcp(host, port) => ("tcp", host.clone(), port.to_string()),
        Address::Unix(path) => {
            let path = path.to_str().ok_or_else(|| failed(io::Error::other("its path is no text")))?;
            ("unix", path.to_owned(), String::new())
        }
    };
    let words = Words::new(["sh", "-c", RELAY, "sh", PYTHON, kind, &address, &port])?;
    let mut io = host.pipe(&words).await?;
    let mut line = Vec::new();
    loop {
        match io.read_u8().await {
            Ok(b'\n') => break,
            Ok(byte) if line.len() < LONGEST_LINE => line.push(byte),
            Ok(_) => return Err(failed(io::Error::other("what relays there does not say whether it is connected"))),
            Err(source) => return Err(failed(source)),
        }
    }
    let line = String::from_utf8_lossy(&line).into_owned();
    match line.split_once(' ').unwrap_or((&line, "")) {
        ("yes", "") => Ok(io),
        ("no", why) => Err(failed(of_errno(why))),
        ("none", "") => Err(failed(io::Error::new(
            io::ErrorKind::Unsupported,
            "there is neither python3 nor socat nor nc inside it to relay the connection",
        ))),
        _ => Err(failed(io::Error::other(format!("what relays there said {line:?}")))),
    }
}

/// `111 Connection refused` as the system's error.
fn of_errno(said: &str) -> io::Error {
    let (number, text) = said.split_once(' ').unwrap_or(("", said));
    match number.parse() {
        Ok(number) if number > 0 => io::Error::from_raw_os_error(number),
        _ => io::Error::other(text.to_owned()),
    }
}
