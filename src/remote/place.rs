//! Puts the program on a host: under a name that is its content, verified there, tried there, and only then by that name.
//!
//! All that is asked of the host is a POSIX shell with the usual small programs. What is under the name is what was
//! verified when it was put there, in a folder that nobody else may write to.

use std::path::PathBuf;

use bytes::Bytes;

use super::{Program, RemoteError};
use crate::host::{Host, Mode, Output, Words};
use crate::units;

/// Finds the work folder: `$1`, else the usual one. Every script here begins with it.
pub(super) const FIND_WORK: &str = r#"
w=$1; b=$2; shift 2
case $w in
'') if [ -n "$XDG_STATE_HOME" ]; then w=$XDG_STATE_HOME/orch
    elif [ -n "$HOME" ]; then w=$HOME/.local/state/orch
    else echo 'orch: this login has no home folder' >&2; exit 96; fi ;;
'~/'*) w=$HOME/${w#'~/'} ;;
esac
p=$w/bin/$b
"#;

/// What is there, a line each.
const LOOK: &str = r#"
umask 077
mkdir -p "$w/bin" || exit 95
echo "work $w"
echo "machine $(uname -s) $(uname -m)"
echo "libc $( (getconf GNU_LIBC_VERSION || ldd --version) 2>&1 | head -n 1)"
echo "owner $(stat -L -c %u "$w") $(id -u) $(stat -L -c %a "$w")"
echo "free $(df -Pk "$w/bin" | tail -n 1 | awk '{print $4}')"
if [ -L "$p" ]; then echo 'there other a link'
elif [ -d "$p" ]; then echo 'there other a folder'
elif [ -e "$p" ]; then
  if [ "$(stat -c %u "$p")" != "$(id -u)" ]; then echo "there other a file of user $(stat -c %u "$p")"
  else echo "there sum $(sha256sum <"$p" | cut -d ' ' -f 1)"; fi
else echo 'there no'; fi
"#;

/// Verifies and tries what was put at `$1`, and gives it its name.
const SETTLE: &str = r#"
n=$1; want=$2; version=$3
got=$(sha256sum <"$n" | cut -d ' ' -f 1)
if [ "$got" != "$want" ]; then rm -f "$n"; echo "sum $got"; exit 0; fi
out=$("$n" --version 2>&1); code=$?
if [ "$code" != 0 ]; then rm -f "$n"; echo "trial $code"; printf '%s\n' "$out"; exit 0; fi
if [ "$out" != "$version" ]; then rm -f "$n"; echo "other $out"; exit 0; fi
mv -f "$n" "$p" && echo placed
"#;

/// How much more than the program must be free: a job and the beginning of a log.
const MARGIN_KIB: u64 = 8 << 10;

/// The program on a host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Placed {
    /// The work folder there.
    pub work: PathBuf,
    /// The program there.
    pub program: PathBuf,
    /// Whether it was put there now.
    pub new: bool,
}

/// Puts `program` on a host, unless it is there. `work` is what its entry says of the work folder.
pub async fn place<H: Host>(
    host: &H,
    name: &str,
    work: Option<&str>,
    program: &Program,
) -> Result<Placed, RemoteError> {
    let looked = script(host, name, "look for its own program", LOOK, work, program, &[]).await?;
    let there = There::parse(&looked);
    let path = there.work.clone();
    let refuse = |why: String| RemoteError::WorkFolder { host: name.to_owned(), path: path.clone(), why };
    if there.work.is_empty() {
        return Err(refuse(format!("it cannot be made: {}", looked.trim())));
    }
    there.fit().map_err(refuse)?;
    let ours = format!("Linux {}", program.machine());
    if there.machine != ours {
        return Err(RemoteError::Architecture {
            host: name.to_owned(),
            theirs: there.machine,
            program: program.shown().to_owned(),
            ours,
        });
    }
    let work = PathBuf::from(&there.work);
    let target = work.join("bin").join(program.file_name());
    let in_the_way =
        |what: String| RemoteError::InTheWay { host: name.to_owned(), path: target.display().to_string(), what };
    match there.found.split_once(' ') {
        Some(("sum", sum)) if sum == program.sha256() => return Ok(Placed { work, program: target, new: false }),
        Some(("sum", sum)) => return Err(in_the_way(format!("its SHA-256 is {sum}"))),
        Some(("other", what)) => return Err(in_the_way(what.to_owned())),
        _ => {}
    }
    let bytes = program.bytes()?;
    let needed = bytes.len() as u64 / 1024 + MARGIN_KIB;
    if let Some(free) = there.free_kib.filter(|free| *free < needed) {
        return Err(RemoteError::Full {
            host: name.to_owned(),
            path: there.work,
            free: units::bytes_text(free * 1024),
            needed: units::bytes_text(needed * 1024),
        });
    }
    let new = work.join("bin").join(format!(".new-{:016x}", rand::random::<u64>()));
    host.put(&new, bytes, Mode(0o700)).await?;
    let new = new.display().to_string();
    let extra = [new.as_str(), program.sha256(), program.version()];
    let told = script(host, name, "try its own program", SETTLE, Some(&there.work), program, &extra).await?;
    let (first, rest) = told.split_once('\n').unwrap_or((told.as_str(), ""));
    match first.split_once(' ').unwrap_or((first, "")) {
        ("placed", _) => Ok(Placed { work, program: target, new: true }),
        ("sum", got) => {
            Err(RemoteError::Damaged { host: name.to_owned(), got: got.to_owned(), want: program.sha256().to_owned() })
        }
        ("other", theirs) => Err(RemoteError::OtherVersion {
            program: program.shown().to_owned(),
            theirs: theirs.to_owned(),
            ours: program.version().to_owned(),
        }),
        (_, code) => Err(trial(name, code, rest, there.libc)),
    }
}

/// Why the program does not run there.
fn trial(host: &str, code: &str, said: &str, libc: String) -> RemoteError {
    match needed_library(said) {
        Some(needs) => RemoteError::CLibrary { host: host.to_owned(), needs, has: libc },
        None => RemoteError::Trial { host: host.to_owned(), code: code.to_owned(), said: said.trim().to_owned() },
    }
}

/// The newest `GLIBC_…` that the loader misses.
fn needed_library(said: &str) -> Option<String> {
    let version = |text: &str| -> Option<Vec<u32>> { text.split('.').map(|part| part.parse().ok()).collect() };
    let found = said.split("GLIBC_").skip(1).filter_map(|rest| {
        let end = rest.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(rest.len());
        version(&rest[..end]).map(|parts| (parts, rest[..end].to_owned()))
    });
    found.max().map(|(_, text)| format!("GLIBC_{text}"))
}

/// What a host says of itself.
#[derive(Debug, Default, PartialEq, Eq)]
struct There {
    work: String,
    machine: String,
    libc: String,
    owner: String,
    free_kib: Option<u64>,
    found: String,
}

impl There {
    fn parse(text: &str) -> Self {
        let mut there = There::default();
        for line in text.lines() {
            let Some((key, value)) = line.split_once(' ') else { continue };
            match key {
                "work" => value.clone_into(&mut there.work),
                "machine" => value.clone_into(&mut there.machine),
                "libc" => value.clone_into(&mut there.libc),
                "owner" => value.clone_into(&mut there.owner),
                "free" => there.free_kib = value.trim().parse().ok(),
                "there" => value.clone_into(&mut there.found),
                _ => {}
            }
        }
        there
    }

    /// Whether programs may lie in the work folder: it is this login's own, and nobody else may write to it.
    fn fit(&self) -> Result<(), String> {
        let words: Vec<&str> = self.owner.split_whitespace().collect();
        let [owner, own, mode] = words[..] else { return Err("its owner cannot be told".to_owned()) };
        if owner != own {
            return Err(format!("it belongs to user {owner}, and this login is user {own}"));
        }
        match u32::from_str_radix(mode, 8) {
            Ok(bits) if bits & 0o022 == 0 => Ok(()),
            _ => Err(format!("others may write to it (mode {mode})")),
        }
    }
}

async fn script<H: Host>(
    host: &H,
    name: &str,
    what: &str,
    script: &str,
    work: Option<&str>,
    program: &Program,
    extra: &[&str],
) -> Result<String, RemoteError> {
    let file_name = program.file_name();
    let text = format!("{FIND_WORK}{script}");
    let first = ["sh", "-c", &text, "orch", work.unwrap_or_default(), &file_name];
    let words = Words::new(first.into_iter().chain(extra.iter().copied()))?;
    let output = host.run(&words, Bytes::new()).await?;
    if !output.ok() {
        return Err(failed(name, what, &output));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

pub(super) fn failed(host: &str, what: &str, output: &Output) -> RemoteError {
    let said = String::from_utf8_lossy(&output.stderr);
    let said = match said.trim() {
        "" => format!("it ended with {:?}", output.end),
        said => said.to_owned(),
    };
    RemoteError::Beside { host: host.to_owned(), what: what.to_owned(), said }
}

#[cfg(test)]
mod tests;
