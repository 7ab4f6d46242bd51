//! The tables, and the few statements on them.
//!
//! Whoever writes holds one lock until the commit, so that `seq` grows in the order of the commits: a reader that asks for
//! everything after a number misses nothing that a slower writer commits later with a smaller one.

/// Version of the tables.
pub(super) const VERSION: i32 = 1;

/// What writers lock: "orch", as a number.
pub(super) const LOCK: i64 = 0x6f72_6368;

pub(super) const TABLES: &str = "
    CREATE SEQUENCE IF NOT EXISTS orch_seq;
    CREATE TABLE IF NOT EXISTS orch_runs (
        id text PRIMARY KEY, seq bigint NOT NULL UNIQUE, writer text NOT NULL, hash text NOT NULL, record text NOT NULL
    );
    CREATE TABLE IF NOT EXISTS orch_baselines (
        id text PRIMARY KEY, seq bigint NOT NULL UNIQUE, writer text NOT NULL, line text NOT NULL
    );
    CREATE TABLE IF NOT EXISTS orch_store (version integer NOT NULL, id text NOT NULL);
";

/// Also a database that waits for us is not waited for long, and one that stopped in the midst holds nobody up.
pub(super) const PATIENCE: &str = "
    SET LOCAL lock_timeout = '5s'; SET LOCAL statement_timeout = '10s'; SET LOCAL idle_in_transaction_session_timeout = '10s'";

pub(super) const ADD_RUNS: &str = "
    INSERT INTO orch_runs (id, seq, writer, hash, record)
    SELECT given.id, nextval('orch_seq'), $4, given.hash, given.record
    FROM unnest($1::text[], $2::text[], $3::text[]) AS given (id, hash, record)
    ON CONFLICT (id) DO NOTHING RETURNING id";

pub(super) const REPLACE_RUN: &str =
    "UPDATE orch_runs SET seq = nextval('orch_seq'), hash = $2, record = $3, writer = $4 WHERE id = $1";

pub(super) const ADD_BASELINES: &str = "
    INSERT INTO orch_baselines (id, seq, writer, line)
    SELECT given.id, nextval('orch_seq'), $3, given.line FROM unnest($1::text[], $2::text[]) AS given (id, line)
    ON CONFLICT (id) DO NOTHING";

/// What this folder has sent itself just now need not come back.
pub(super) const RUNS_AFTER: &str = "
    SELECT id, seq, writer,
           CASE WHEN hash = ANY($2::text[]) OR octet_length(record) > $3::bigint THEN NULL ELSE record END
    FROM orch_runs WHERE seq > $1 ORDER BY seq";

pub(super) const RUNS_BY_ID: &str = "
    SELECT id, seq, writer, CASE WHEN octet_length(record) > $2::bigint THEN NULL ELSE record END
    FROM orch_runs WHERE id = ANY($1::text[]) ORDER BY seq";

pub(super) const BASELINES_AFTER: &str = "
    SELECT id, seq, CASE WHEN octet_length(line) > $2::bigint THEN NULL ELSE line END
    FROM orch_baselines WHERE seq > $1 ORDER BY seq";

/// The highest numbers that were given.
pub(super) const ENDS: &str = "
    SELECT (SELECT coalesce(max(seq), 0) FROM orch_runs), (SELECT coalesce(max(seq), 0) FROM orch_baselines)";
