//! `orch pull`: brings records from another host.

use bytes::Bytes;

use super::far::{self, There};
use super::far_run::{bring, look_at, word};
use super::{Exit, Failure, Global, Outcome, out, records};
use crate::host::runtime;
use crate::launch::WorkFolder;
use crate::record::index::Filter;
use crate::record::{RunId, Store, Which};
use crate::remote::beside::Look;
use crate::remote::{self, Line, Named, Pulled};

/// Brings the records of runs on another host here
///
/// A run that ends while it is watched is brought by itself; this is for one that was left. Without an id all that have
/// ended and are not here yet are brought. What is here already is left as it is.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  orch pull -H ct129             all that have ended there and are not here
  orch pull r0421 -H ct129       this one
  orch pull r0421                the same, where it was begun from here

Exit codes: 0 all that were asked for are here; 2 no such run, or it still goes on; 3 the host cannot be reached")]
pub(crate) struct PullArgs {
    /// A run's short name or id, or `latest`
    #[arg(value_name = "ID")]
    id: Option<String>,
    /// A JSON array on standard output: the runs and whether they were brought
    #[arg(long)]
    json: bool,
}

/// A run, and what became of it.
#[derive(Debug, serde::Serialize)]
struct Row {
    run: String,
    /// `false` where it was here already.
    brought: bool,
}

pub(crate) fn run(args: PullArgs, global: &Global) -> Outcome {
    let PullArgs { id, json } = args;
    let (host, global) = place(id.as_deref(), global)?;
    let there = There::of(&host, &global)?;
    let store = records::store(&global)?;
    let runtime = runtime::on_threads(2).map_err(Failure::start)?;
    let (rows, going) = runtime.block_on(async {
        let line = Line::open(there.door.clone()).await.map_err(far::failure)?;
        all(&there, line, id.as_deref(), &store, &global).await
    })?;
    if rows.iter().any(|row| row.brought) {
        // The next listing finds it anyway; this one has the time.
        let _ = store.list(&Filter { limit: Some(1), ..Filter::default() });
        records::meet(&store);
    }
    if json {
        out::line(serde_json::to_string_pretty(&rows).map_err(Failure::own)?);
        return Ok(Exit::Done);
    }
    for row in &rows {
        let pulled = if row.brought { Pulled::New } else { Pulled::There };
        out::line(format!("{}  {}", row.run, word(pulled)));
    }
    if rows.is_empty() {
        out::line(format!("nothing to bring from {host}"));
    }
    for id in going {
        out::note(format!("{} still goes on: orch attach {} -H {host}", id, id.short()));
    }
    Ok(Exit::Done)
}

/// The host that is meant, with the file that names it: that of `-H`, else the one that the run was begun on from here.
fn place(id: Option<&str>, global: &Global) -> Result<(String, Global), Failure> {
    if let Some(host) = far::asked(global) {
        return Ok((host.to_owned(), global.clone()));
    }
    let known = WorkFolder::find().map(|work| remote::known_runs(work.root())).unwrap_or_default();
    let which: Option<Which> = id.and_then(|id| id.parse().ok());
    let fits = |far: &&remote::FarRun| match (&which, far.run.parse::<RunId>()) {
        (Some(Which::Latest), _) => true,
        (Some(which), Ok(id)) => which.fits(&id),
        _ => false,
    };
    match known.iter().rev().find(fits) {
        Some(far) => {
            let hosts = global.hosts.clone().or_else(|| far.hosts.clone());
            Ok((far.host.clone(), Global { hosts, ..global.clone() }))
        }
        None => {
            let report =
                miette::miette!(help = "`orch pull -H HOST`", "no host is named that records are brought from");
            Err(Failure::new(Exit::Usage, report))
        }
    }
}

/// Brings what was asked for: what became of each, and those that still go on.
async fn all(
    there: &There,
    mut line: Line<Named>,
    id: Option<&str>,
    store: &Store,
    global: &Global,
) -> Result<(Vec<Row>, Vec<RunId>), Failure> {
    let looks: Vec<Look> = match id {
        Some(id) => vec![look_at(there, &line.host(), id).await?],
        None => {
            let asked = there.far.ask(&line.host(), "list its runs", &["runs"], Bytes::new()).await;
            asked.map_err(far::failure)?
        }
    };
    let (mut rows, mut going) = (Vec::new(), Vec::new());
    for look in looks {
        let Some(id) = look.run.as_ref().and_then(|run| run.id.parse::<RunId>().ok()) else { continue };
        if look.running {
            going.push(id);
            continue;
        }
        let (_, pulled) = bring(there, &mut line, store, &id, &look, global).await?;
        rows.push(Row { run: id.to_string(), brought: pulled == Pulled::New });
    }
    if let (Some(id), [going]) = (id, going.as_slice()) {
        let help = format!("orch attach {} -H {}", going.short(), there.far.name());
        return Err(Failure::new(Exit::Usage, miette::miette!(help = help, "the run `{id}` still goes on there")));
    }
    Ok((rows, going))
}
