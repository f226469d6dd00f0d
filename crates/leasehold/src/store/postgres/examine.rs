//! What `leasehold doctor` wants to know.

use tokio_postgres::types::Type;

use super::gate::Gate;
use super::listener::{UNDER_WAY, hear};
use super::schema::NEWEST;
use super::session::Session;
use super::trouble::Fail;
use crate::store::Finding;

/// Looks at the server and its settings.
pub(super) async fn examine(gate: &Gate, session: &Session) -> Result<Vec<Finding>, Fail> {
    let facts = Facts::read(gate, session).await?;
    let mut findings = vec![
        Finding::ok("version", format!("PostgreSQL {}", facts.version)),
        Finding::ok(
            "schema",
            format!("'{}', version {} of {NEWEST}", gate.options.schema, facts.schema_version),
        ),
        facts.role(),
        facts.synchronous_commit(),
        facts.fsync(),
        facts.encryption(gate),
        facts.timeouts(),
    ];
    findings.push(wakes(gate, session).await?);
    Ok(findings)
}

struct Facts {
    version: String,
    schema_version: String,
    is_replica: bool,
    synchronous_commit: String,
    fsync: String,
    encrypted: Option<String>,
    statement_timeout: String,
}

impl Facts {
    async fn read(gate: &Gate, session: &Session) -> Result<Self, Fail> {
        let sql = format!(
            "SELECT current_setting('server_version'),
                    (SELECT value FROM {}.meta WHERE key = 'schema_version'),
                    pg_is_in_recovery(), current_setting('synchronous_commit'), current_setting('fsync'),
                    (SELECT version FROM pg_stat_ssl WHERE pid = pg_backend_pid() AND ssl),
                    current_setting('statement_timeout')",
            gate.options.schema
        );
        let rows = session.client().query_typed(&sql, &[]).await?;
        let row =
            rows.first().ok_or_else(|| Fail::Unreadable("the server knows nothing of itself".into()))?;
        Ok(Self {
            version: row.try_get(0)?,
            schema_version: row.try_get::<_, Option<String>>(1)?.unwrap_or_else(|| "unknown".to_owned()),
            is_replica: row.try_get(2)?,
            synchronous_commit: row.try_get(3)?,
            fsync: row.try_get(4)?,
            encrypted: row.try_get(5)?,
            statement_timeout: row.try_get(6)?,
        })
    }

    fn role(&self) -> Finding {
        if self.is_replica {
            let hint = "name the primary: a replica cannot be written, and what it says may be old";
            return Finding::concern("role", "a replica", "POSTGRES_REPLICA", hint);
        }
        Finding::ok("role", "primary")
    }

    fn synchronous_commit(&self) -> Finding {
        let (name, set) = ("synchronous_commit", self.synchronous_commit.as_str());
        if set == "off" {
            let hint = "a crash of the server can forget a grant that a holder counts on; set it to on, for everybody or \
                        for this role: ALTER ROLE … SET synchronous_commit = on";
            return Finding::concern(name, set, "POSTGRES_SYNC_COMMIT_OFF", hint);
        }
        Finding::ok(name, set)
    }

    fn fsync(&self) -> Finding {
        if self.fsync == "off" {
            let hint = "a power cut can damage the whole database; set fsync = on in postgresql.conf";
            return Finding::concern("fsync", "off", "POSTGRES_FSYNC_OFF", hint);
        }
        Finding::ok("fsync", self.fsync.as_str())
    }

    fn encryption(&self, gate: &Gate) -> Finding {
        match &self.encrypted {
            Some(version) => Finding::ok("encryption", version.as_str()),
            None if is_near(gate) => Finding::ok("encryption", "off; the server is on this machine"),
            None => {
                let hint = "names, holders and the password's proof cross the network in the clear; add \
                            sslmode=verify-full to the URL";
                Finding::concern("encryption", "off", "POSTGRES_NOT_ENCRYPTED", hint)
            }
        }
    }

    fn timeouts(&self) -> Finding {
        if self.statement_timeout == "0" {
            let hint = "behind a pooler they cannot be set with the connection; set them for the role: ALTER ROLE … SET \
                        statement_timeout = '4s', and lock_timeout = '2s', and idle_in_transaction_session_timeout = '5s'";
            return Finding::concern("timeouts", "the server never gives up", "POSTGRES_NO_TIMEOUTS", hint);
        }
        Finding::ok("timeouts", format!("a statement ends after {}", self.statement_timeout))
    }
}

/// Whether the way to the server leaves this machine.
fn is_near(gate: &Gate) -> bool {
    gate.options.config.get_hosts().iter().all(|host| match host {
        tokio_postgres::config::Host::Tcp(host) => {
            let loopback = host.parse::<std::net::IpAddr>().is_ok_and(|address| address.is_loopback());
            loopback || host == "localhost"
        }
        #[cfg(unix)]
        tokio_postgres::config::Host::Unix(_) => true,
    })
}

/// Sends a wake-up around.
async fn wakes(gate: &Gate, session: &Session) -> Result<Finding, Fail> {
    let lost = |detail: &str| {
        let hint = "a pooler in transaction mode loses them, and waiters poll; connect to the server itself, or use a pooler \
                    in session mode, for quick hand-overs";
        Finding::concern("wake-ups", detail, "POSTGRES_POOLER", hint)
    };
    if gate.is_pooled() {
        return Ok(lost("off: there is a pooler in transaction mode"));
    }
    let ear = hear(gate).await?;
    let (word, (tell, told)) = (format!("doctor {}", fastrand::u64(..)), tokio::sync::oneshot::channel());
    let (expected, tell) = (word.clone(), std::sync::Mutex::new(Some(tell)));
    let listening = ear.listen(move |_, payload| {
        if payload == expected
            && let Some(tell) = tell.lock().unwrap_or_else(std::sync::PoisonError::into_inner).take()
        {
            let _ = tell.send(());
        }
    });
    let params: [(&(dyn tokio_postgres::types::ToSql + Sync), Type); 2] =
        [(&gate.channel(), Type::TEXT), (&word, Type::TEXT)];
    session.client().query_typed("SELECT pg_notify($1, $2)", &params).await?;
    tokio::select! {
        fail = listening => Err(fail),
        heard = tokio::time::timeout(UNDER_WAY, told) => Ok(match heard {
            Ok(_) => Finding::ok("wake-ups", "arrive"),
            Err(_) => lost("do not arrive"),
        }),
    }
}
