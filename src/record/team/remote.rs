//! The database, opened: what is asked of it, each with a time limit, and what its errors mean.

use std::time::Duration;

use futures_util::TryStreamExt;
use tokio_postgres::types::ToSql;
use tokio_postgres::{Client, Row, RowStream, Transaction};

use super::address::Address;
use super::error::TeamError;
use super::sql;
use super::tls::Tls;
use crate::record::model::Writer;

/// How long the database may take for a statement, or for the next row.
const WORK: Duration = Duration::from_secs(10);

/// A record that is larger is neither sent nor taken.
pub(super) const LARGEST_BYTES: usize = 16 << 20;

/// A run on its way there.
#[derive(Debug)]
pub(super) struct Outgoing {
    pub(super) id: String,
    pub(super) hash: String,
    pub(super) record: String,
    /// The hashes under which this folder has sent it before: what it may replace.
    pub(super) before: Vec<String>,
}

/// What became of one.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Taken {
    /// It is there from now on.
    Now,
    /// It was there already, by us or by whoever sent the very same.
    There,
    /// Another one is under its id, by this writer.
    Other(String),
}

/// A run that is there.
#[derive(Debug)]
pub(super) struct Incoming {
    pub(super) id: String,
    pub(super) seq: i64,
    pub(super) writer: String,
    /// `None` where it is too large, or its hash was among those that are known.
    pub(super) record: Option<String>,
}

/// An open store.
pub(super) struct Remote {
    client: Client,
    store: String,
    /// Its own id, drawn when its tables were made.
    pub(super) id: String,
}

impl Remote {
    /// Opens a store, and makes its tables where there are none yet.
    pub(super) async fn open(address: &Address) -> Result<Self, TeamError> {
        let away = |why: String| TeamError::Away { store: address.to_string(), why };
        let tls = Tls::new().map_err(|error| away(format!("TLS cannot be set up: {error}")))?;
        let connecting = tokio::time::timeout(address.connect_limit(), address.config.connect(tls));
        let (client, connection) = match connecting.await {
            Err(_) => return Err(away(format!("no answer within {} s", address.connect_limit().as_secs_f32()))),
            Ok(Err(error)) => return Err(away(words(&error))),
            Ok(Ok(open)) => open,
        };
        // It ends with the client; what went wrong with it, the statement in hand tells.
        tokio::spawn(async move { drop(connection.await) });
        let mut remote = Remote { client, store: address.to_string(), id: String::new() };
        let mut found = remote.look().await?;
        if found.is_none() {
            remote.make().await?;
            found = remote.look().await?;
        }
        remote.id = remote.check(found)?;
        Ok(remote)
    }

    /// Version and id of the tables that are there.
    async fn look(&self) -> Result<Option<(i32, String)>, TeamError> {
        let doing = "say what it holds";
        let there =
            self.within(doing, self.client.query_one("SELECT to_regclass('orch_store') IS NOT NULL", &[])).await?;
        if !self.get::<bool>(doing, &there, 0)? {
            return Ok(None);
        }
        let row = self.within(doing, self.client.query_opt("SELECT version, id FROM orch_store LIMIT 1", &[])).await?;
        row.map(|row| Ok((self.get(doing, &row, 0)?, self.get(doing, &row, 1)?))).transpose()
    }

    async fn make(&mut self) -> Result<(), TeamError> {
        let doing = "let its tables be made";
        let id = format!("{:016x}", rand::random::<u64>());
        let (tables, patience, lock, version) = (sql::TABLES, sql::PATIENCE, sql::LOCK, sql::VERSION);
        let row = format!("INSERT INTO orch_store SELECT {version}, '{id}' WHERE NOT EXISTS (SELECT FROM orch_store)");
        // Several may come at once: the second finds them made.
        let all = format!("BEGIN; {patience}; SELECT pg_advisory_xact_lock({lock}); {tables} {row}; COMMIT");
        self.within(doing, self.client.batch_execute(&all)).await
    }

    /// The id, if these tables are of a version that is known. It becomes the name of a folder.
    fn check(&self, found: Option<(i32, String)>) -> Result<String, TeamError> {
        let not =
            |why: &str| TeamError::Refused { store: self.store.clone(), doing: "say what it holds", why: why.into() };
        let (version, id) = found.ok_or_else(|| not("its table orch_store is empty"))?;
        if version > sql::VERSION {
            return Err(TeamError::Newer { store: self.store.clone(), found: version, known: sql::VERSION });
        }
        let plain = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
        match version >= 1 && (8..=64).contains(&id.len()) && id.bytes().all(plain) {
            true => Ok(id),
            false => Err(not("its table orch_store holds no version and id of orch's")),
        }
    }

    /// Adds runs, all or none. One whose id is taken stays as it is, unless it is what this folder has sent before.
    pub(super) async fn add_runs(&mut self, runs: &[Outgoing], writer: &Writer) -> Result<Vec<Taken>, TeamError> {
        let (doing, store) = ("take runs", self.store.clone());
        let adding = async {
            let transaction = begin(&mut self.client).await?;
            let taken = add(&transaction, runs, &writer.to_string()).await?;
            transaction.commit().await?;
            Ok(taken)
        };
        within(&store, doing, adding).await
    }

    /// Adds lines of baselines, by id, and returns how many are new. Those that are there already stay as they are.
    pub(super) async fn add_baselines(
        &mut self,
        lines: &[(String, String)],
        writer: &Writer,
    ) -> Result<u64, TeamError> {
        let (doing, store) = ("take baselines", self.store.clone());
        let (ids, texts): (Vec<&str>, Vec<&str>) = lines.iter().map(|(id, text)| (id.as_str(), text.as_str())).unzip();
        let adding = async {
            let transaction = begin(&mut self.client).await?;
            let added = transaction.execute(sql::ADD_BASELINES, &[&ids, &texts, &writer.to_string()]).await?;
            transaction.commit().await?;
            Ok(added)
        };
        within(&store, doing, adding).await
    }

    /// The highest numbers of runs and of baselines.
    pub(super) async fn ends(&self) -> Result<(i64, i64), TeamError> {
        let row = self.within("say what it holds", self.client.query_one(sql::ENDS, &[])).await?;
        Ok((self.get("say what it holds", &row, 0)?, self.get("say what it holds", &row, 1)?))
    }

    /// Ids and hashes of all runs.
    pub(super) async fn hashes(&self) -> Result<Vec<(String, String)>, TeamError> {
        let rows = self.within("give runs", self.client.query("SELECT id, hash FROM orch_runs", &[])).await?;
        rows.iter().map(|row| Ok((self.get("give runs", row, 0)?, self.get("give runs", row, 1)?))).collect()
    }

    /// Runs whose number is above `seq`, oldest first; of those whose hash is among `known`, all but the record.
    pub(super) async fn runs_after(&self, seq: i64, known: &[String]) -> Result<RowStream, TeamError> {
        let largest = i64::try_from(LARGEST_BYTES).unwrap_or(i64::MAX);
        let parameters: [&dyn ToSql; 3] = [&seq, &known, &largest];
        self.within("give runs", self.client.query_raw(sql::RUNS_AFTER, parameters)).await
    }

    /// Runs by id.
    pub(super) async fn runs_by_id(&self, ids: &[String]) -> Result<RowStream, TeamError> {
        let largest = i64::try_from(LARGEST_BYTES).unwrap_or(i64::MAX);
        let parameters: [&dyn ToSql; 2] = [&ids, &largest];
        self.within("give runs", self.client.query_raw(sql::RUNS_BY_ID, parameters)).await
    }

    /// The next of them.
    pub(super) async fn next_run(
        &self,
        rows: &mut (impl TryStreamExt<Ok = Row, Error = tokio_postgres::Error> + Unpin),
    ) -> Result<Option<Incoming>, TeamError> {
        let doing = "give runs";
        let Some(row) = self.within(doing, rows.try_next()).await? else { return Ok(None) };
        Ok(Some(Incoming {
            id: self.get(doing, &row, 0)?,
            seq: self.get(doing, &row, 1)?,
            writer: self.get(doing, &row, 2)?,
            record: self.get(doing, &row, 3)?,
        }))
    }

    /// Ids, numbers and lines of baselines above `seq`, oldest first; a line that is too large is `None`.
    pub(super) async fn baselines_after(&self, seq: i64) -> Result<Vec<(String, i64, Option<String>)>, TeamError> {
        let (doing, largest) = ("give baselines", i64::try_from(LARGEST_BYTES).unwrap_or(i64::MAX));
        let rows = self.within(doing, self.client.query(sql::BASELINES_AFTER, &[&seq, &largest])).await?;
        rows.iter()
            .map(|row| Ok((self.get(doing, row, 0)?, self.get(doing, row, 1)?, self.get(doing, row, 2)?)))
            .collect()
    }

    async fn within<T>(
        &self,
        doing: &'static str,
        work: impl Future<Output = Result<T, tokio_postgres::Error>>,
    ) -> Result<T, TeamError> {
        within(&self.store, doing, work).await
    }

    /// A column, of the type that the tables have unless somebody else made them.
    fn get<'a, T: tokio_postgres::types::FromSql<'a>>(
        &self,
        doing: &'static str,
        row: &'a Row,
        column: usize,
    ) -> Result<T, TeamError> {
        row.try_get(column).map_err(|error| failed(&self.store, doing, &error))
    }
}

/// Begins to write: from here to the commit nobody else does.
async fn begin(client: &mut Client) -> Result<Transaction<'_>, tokio_postgres::Error> {
    let transaction = client.transaction().await?;
    transaction.batch_execute(sql::PATIENCE).await?;
    transaction.execute("SELECT pg_advisory_xact_lock($1)", &[&sql::LOCK]).await?;
    Ok(transaction)
}

async fn add(
    transaction: &Transaction<'_>,
    runs: &[Outgoing],
    writer: &str,
) -> Result<Vec<Taken>, tokio_postgres::Error> {
    let ids: Vec<&str> = runs.iter().map(|run| run.id.as_str()).collect();
    let hashes: Vec<&str> = runs.iter().map(|run| run.hash.as_str()).collect();
    let records: Vec<&str> = runs.iter().map(|run| run.record.as_str()).collect();
    let added = transaction.query(sql::ADD_RUNS, &[&ids, &hashes, &records, &writer]).await?;
    let added: Vec<&str> = added.iter().map(|row| row.try_get(0)).collect::<Result<_, _>>()?;
    let mut taken = Vec::new();
    for run in runs {
        if added.contains(&run.id.as_str()) {
            taken.push(Taken::Now);
            continue;
        }
        let there = transaction.query_one("SELECT hash, writer FROM orch_runs WHERE id = $1", &[&run.id]).await?;
        let hash: &str = there.try_get(0)?;
        taken.push(if hash == run.hash {
            Taken::There
        } else if run.before.iter().any(|before| before == hash) {
            transaction.execute(sql::REPLACE_RUN, &[&run.id, &run.hash, &run.record, &writer]).await?;
            Taken::Now
        } else {
            Taken::Other(there.try_get(1)?)
        });
    }
    Ok(taken)
}

async fn within<T>(
    store: &str,
    doing: &'static str,
    work: impl Future<Output = Result<T, tokio_postgres::Error>>,
) -> Result<T, TeamError> {
    match tokio::time::timeout(WORK, work).await {
        Ok(done) => done.map_err(|error| failed(store, doing, &error)),
        Err(_) => {
            Err(TeamError::Away { store: store.to_owned(), why: format!("no answer within {} s", WORK.as_secs()) })
        }
    }
}

/// What a failed statement means: most of what is not the statement's own fault passes by itself.
fn failed(store: &str, doing: &'static str, error: &tokio_postgres::Error) -> TeamError {
    let (store, why) = (store.to_owned(), words(error));
    let passes = |code: &str| ["08", "53", "57"].iter().any(|class| code.starts_with(class)) || code == "55P03";
    match error.code() {
        Some(code) if !passes(code.code()) => TeamError::Refused { store, doing, why },
        None if error.is_closed() || is_io(error) => TeamError::Away { store, why },
        Some(_) => TeamError::Away { store, why },
        None => TeamError::Refused { store, doing, why },
    }
}

fn is_io(error: &tokio_postgres::Error) -> bool {
    std::error::Error::source(error).is_some_and(|source| source.is::<std::io::Error>())
}

/// The database's own sentence where it said one. Its details are left out: they may quote what is in the tables.
fn words(error: &tokio_postgres::Error) -> String {
    match error.as_db_error() {
        Some(said) => said.message().to_owned(),
        None => match std::error::Error::source(error) {
            Some(source) => source.to_string(),
            None => error.to_string(),
        },
    }
}
