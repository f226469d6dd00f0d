//! Health checks for `leasehold doctor`.

use tokio_postgres::types::Type;

use super::gate::Gate;
use super::listener::{UNDER_WAY, hear};
use super::options::{PostgresOptions, SslMode};
use super::schema::NEWEST;
use super::session::Session;
use super::trouble::Fail;
use crate::store::HealthCheck;
use crate::store::connect::is_this_machine;

/// Checks the server and its settings.
pub(super) async fn check_health(gate: &Gate, session: &Session) -> Result<Vec<HealthCheck>, Fail> {
    let facts = Facts::read(gate, session).await?;
    let mut findings = vec![
        HealthCheck::ok("version", format!("PostgreSQL {}", facts.version)),
        HealthCheck::ok(
            "schema",
            format!("'{}', version {} of {NEWEST}", gate.options.schema, facts.schema_version),
        ),
        facts.role(),
        facts.synchronous_commit(),
        facts.fsync(),
        encryption(facts.encrypted.as_deref(), &gate.options),
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

    fn role(&self) -> HealthCheck {
        if self.is_replica {
            let hint = "name the primary: a replica cannot be written, and what it says may be old";
            return HealthCheck::concern("role", "a replica", "POSTGRES_REPLICA", hint);
        }
        HealthCheck::ok("role", "primary")
    }

    fn synchronous_commit(&self) -> HealthCheck {
        let (name, set) = ("synchronous_commit", self.synchronous_commit.as_str());
        if set == "off" {
            let hint = "a crash of the server can forget a grant that a holder counts on; set it to on, for everybody or \
                        for this role: ALTER ROLE … SET synchronous_commit = on";
            return HealthCheck::concern(name, set, "POSTGRES_SYNC_COMMIT_OFF", hint);
        }
        HealthCheck::ok(name, set)
    }

    fn fsync(&self) -> HealthCheck {
        if self.fsync == "off" {
            let hint = "a power cut can damage the whole database; set fsync = on in postgresql.conf";
            return HealthCheck::concern("fsync", "off", "POSTGRES_FSYNC_OFF", hint);
        }
        HealthCheck::ok("fsync", self.fsync.as_str())
    }

    fn timeouts(&self) -> HealthCheck {
        if self.statement_timeout == "0" {
            let hint = "behind a pooler they cannot be set with the connection; set them for the role: ALTER ROLE … SET \
                        statement_timeout = '4s', and lock_timeout = '2s', and idle_in_transaction_session_timeout = '5s'";
            return HealthCheck::concern(
                "timeouts",
                "the server never gives up",
                "POSTGRES_NO_TIMEOUTS",
                hint,
            );
        }
        HealthCheck::ok("timeouts", format!("a statement ends after {}", self.statement_timeout))
    }
}

/// Checks whether others on the network can read the traffic or impersonate the server. `version`
/// is the version of TLS, if TLS is on.
fn encryption(version: Option<&str>, options: &PostgresOptions) -> HealthCheck {
    let name = "encryption";
    let Some(version) = version else {
        if is_near(options) {
            return HealthCheck::ok(name, "off; the server is on this machine");
        }
        let hint = "names, holders and the password's proof cross the network in the clear; add \
                    sslmode=verify-full to the URL";
        return HealthCheck::concern(name, "off", "POSTGRES_NOT_ENCRYPTED", hint);
    };
    let verified = match options.sslmode {
        SslMode::VerifyFull => "certificate and host verified",
        SslMode::VerifyCa => "certificate verified, host not (verify-ca)",
        SslMode::Require if options.sslrootcert.is_some() => {
            "certificate verified, host not (require with sslrootcert)"
        }
        SslMode::Disable | SslMode::Prefer | SslMode::Require if is_near(options) => {
            "certificate not verified; the server is on this machine"
        }
        SslMode::Disable | SslMode::Prefer | SslMode::Require => {
            let hint = "anyone between here and the server can pose as the server and read everything; add \
                        sslmode=verify-full to the URL, and sslrootcert=FILE for a CA of your own";
            let detail = format!("{version}, encrypted, but the server's certificate is not verified");
            return HealthCheck::concern(name, detail, "POSTGRES_NOT_VERIFIED", hint);
        }
    };
    HealthCheck::ok(name, format!("{version}, {verified}"))
}

/// Whether the server is on this machine, so that no traffic leaves the machine.
fn is_near(options: &PostgresOptions) -> bool {
    options.config.get_hosts().iter().all(|host| match host {
        tokio_postgres::config::Host::Tcp(host) => is_this_machine(host),
        #[cfg(unix)]
        tokio_postgres::config::Host::Unix(_) => true,
    })
}

/// Sends a notification and checks that it arrives.
async fn wakes(gate: &Gate, session: &Session) -> Result<HealthCheck, Fail> {
    let lost = |detail: &str| {
        let hint = "a pooler in transaction mode loses them, and waiters poll; connect to the server itself, or use a pooler \
                    in session mode, for quick hand-overs";
        HealthCheck::concern("wake-ups", detail, "POSTGRES_POOLER", hint)
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
            Ok(_) => HealthCheck::ok("wake-ups", "arrive"),
            Err(_) => lost("do not arrive"),
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::StoreUrl;

    fn code(version: Option<&str>, url: &str) -> Option<&'static str> {
        let options = PostgresOptions::from_url(&StoreUrl::parse(url).unwrap()).unwrap();
        encryption(version, &options).concern.map(|concern| concern.code)
    }

    #[test]
    fn encryption_that_is_not_verified_is_a_concern_unless_the_server_is_here() {
        let (plain, tls) = (None, Some("TLSv1.3"));
        let unverified = Some("POSTGRES_NOT_VERIFIED");
        for (version, url, expected) in [
            (plain, "postgres://u@db/x", Some("POSTGRES_NOT_ENCRYPTED")),
            (plain, "postgres://u@db/x?sslmode=disable", Some("POSTGRES_NOT_ENCRYPTED")),
            (plain, "postgres://u@127.0.0.1/x", None),
            (plain, "postgres://u@localhost,db/x", Some("POSTGRES_NOT_ENCRYPTED")),
            (tls, "postgres://u@db/x", unverified),
            (tls, "postgres://u@db/x?sslmode=prefer", unverified),
            (tls, "postgres://u@db/x?sslmode=require", unverified),
            (tls, "postgres://u@db/x?sslmode=require&sslrootcert=/ca.pem", None),
            (tls, "postgres://u@db/x?sslmode=verify-ca", None),
            (tls, "postgres://u@db/x?sslmode=verify-full", None),
            (tls, "postgres://u@[::1]/x?sslmode=require", None),
        ] {
            assert_eq!(code(version, url), expected, "{version:?} {url}");
        }
    }
}
