//! Health checks for `leasehold doctor`.

use tokio_postgres::types::Type;

use super::columns::{Param, first_row};
use super::connection::{Connector, NOTIFY_TIMEOUT, Session, open_listening};
use super::error::PgError;
use super::options::{PostgresOptions, SslMode};
use super::schema::VERSION;
use crate::store::HealthCheck;
use crate::store::support::mutex::lock;
use crate::store::support::url::store_url::is_this_machine;

pub(super) async fn check_health(
    connector: &Connector,
    session: &Session,
) -> Result<Vec<HealthCheck>, PgError> {
    let schema = &connector.options.schema;
    let sql = format!(
        "SELECT current_setting('server_version'),
                (SELECT value FROM {schema}.meta WHERE key = 'schema_version'),
                pg_is_in_recovery(), current_setting('synchronous_commit'), current_setting('fsync'),
                (SELECT version FROM pg_stat_ssl WHERE pid = pg_backend_pid() AND ssl),
                current_setting('statement_timeout')"
    );
    let rows = session.client.query_typed(&sql, &[]).await?;
    let row = first_row(&rows)?;
    let version: &str = row.try_get(0)?;
    let schema_version = row.try_get::<_, Option<&str>>(1)?.unwrap_or("unknown");
    Ok(vec![
        HealthCheck::ok("version", format!("PostgreSQL {version}")),
        HealthCheck::ok("schema", format!("'{schema}', version {schema_version} of {VERSION}")),
        role(row.try_get(2)?),
        synchronous_commit(row.try_get(3)?),
        fsync(row.try_get(4)?),
        encryption(row.try_get(5)?, &connector.options),
        timeouts(row.try_get(6)?),
        notifications(connector, session).await?,
    ])
}

fn role(is_replica: bool) -> HealthCheck {
    if is_replica {
        let hint = "connect to the primary: a replica is read-only, and its data may be outdated";
        return HealthCheck::issue("role", "a replica", "POSTGRES_REPLICA", hint);
    }
    HealthCheck::ok("role", "primary")
}

fn synchronous_commit(set: &str) -> HealthCheck {
    if set == "off" {
        let hint = "a crash of the server can lose a grant that its holder has received; set it to on, for the server or \
                    for this role: ALTER ROLE … SET synchronous_commit = on";
        return HealthCheck::issue("synchronous_commit", set, "POSTGRES_SYNC_COMMIT_OFF", hint);
    }
    HealthCheck::ok("synchronous_commit", set)
}

fn fsync(set: &str) -> HealthCheck {
    if set == "off" {
        let hint = "a power cut can damage the whole database; set fsync = on in postgresql.conf";
        return HealthCheck::issue("fsync", "off", "POSTGRES_FSYNC_OFF", hint);
    }
    HealthCheck::ok("fsync", set)
}

fn timeouts(statement_timeout: &str) -> HealthCheck {
    if statement_timeout == "0" {
        let hint = "behind a pooler, timeouts cannot be set with the connection; set them for the role: ALTER ROLE … SET \
                    statement_timeout = '4s', and lock_timeout = '2s', and idle_in_transaction_session_timeout = '5s'";
        let detail = "the server has no statement timeout";
        return HealthCheck::issue("timeouts", detail, "POSTGRES_NO_TIMEOUTS", hint);
    }
    HealthCheck::ok("timeouts", format!("a statement ends after {statement_timeout}"))
}

/// Checks whether others on the network can read the traffic or impersonate the server. `version`
/// is the version of TLS, if TLS is on.
fn encryption(version: Option<&str>, options: &PostgresOptions) -> HealthCheck {
    let name = "encryption";
    let Some(version) = version else {
        if is_local(options) {
            return HealthCheck::ok(name, "off; the server is on this machine");
        }
        let hint = "names, holders and the password's proof are sent unencrypted; add \
                    sslmode=verify-full to the URL";
        return HealthCheck::issue(name, "off", "POSTGRES_NOT_ENCRYPTED", hint);
    };
    let verified = match options.sslmode {
        SslMode::VerifyFull => "certificate and host verified",
        SslMode::VerifyCa => "certificate verified, host not (verify-ca)",
        SslMode::Require if options.sslrootcert.is_some() => {
            "certificate verified, host not (require with sslrootcert)"
        }
        SslMode::Disable | SslMode::Prefer | SslMode::Require if is_local(options) => {
            "certificate not verified; the server is on this machine"
        }
        SslMode::Disable | SslMode::Prefer | SslMode::Require => {
            let hint = "anyone on the network path can impersonate the server and read everything; add \
                        sslmode=verify-full to the URL, and sslrootcert=FILE for a CA of your own";
            let detail = format!("{version}, encrypted, but the server's certificate is not verified");
            return HealthCheck::issue(name, detail, "POSTGRES_NOT_VERIFIED", hint);
        }
    };
    HealthCheck::ok(name, format!("{version}, {verified}"))
}

/// Whether the server is on this machine, so that no traffic leaves the machine.
fn is_local(options: &PostgresOptions) -> bool {
    options.config.get_hosts().iter().all(|host| match host {
        tokio_postgres::config::Host::Tcp(host) => is_this_machine(host),
        #[cfg(unix)]
        tokio_postgres::config::Host::Unix(_) => true,
    })
}

/// Sends a notification and checks that it arrives.
async fn notifications(connector: &Connector, session: &Session) -> Result<HealthCheck, PgError> {
    let not_received = |detail: &str| {
        let hint = "a pooler in transaction mode loses notifications, so waiters poll; for quick hand-overs connect to the \
                    server directly, or use a pooler in session mode";
        HealthCheck::issue("wake-ups", detail, "POSTGRES_POOLER", hint)
    };
    if connector.is_pooled() {
        return Ok(not_received("off: the server is behind a pooler in transaction mode"));
    }
    let connection = open_listening(connector).await?;
    let (payload, (sender, received)) =
        (format!("doctor {}", fastrand::u64(..)), tokio::sync::oneshot::channel());
    let (expected, sender) = (payload.clone(), std::sync::Mutex::new(Some(sender)));
    let listening = connection.listen(move |_, payload| {
        if payload == expected
            && let Some(sender) = lock(&sender).take()
        {
            let _ = sender.send(());
        }
    });
    let params: [(Param<'_>, Type); 2] = [(&connector.channel(), Type::TEXT), (&payload, Type::TEXT)];
    session.client.query_typed("SELECT pg_notify($1, $2)", &params).await?;
    tokio::select! {
        error = listening => Err(error),
        arrived = tokio::time::timeout(NOTIFY_TIMEOUT, received) => Ok(match arrived {
            Ok(_) => HealthCheck::ok("wake-ups", "arrive"),
            Err(_) => not_received("do not arrive"),
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::StoreUrl;

    fn code(version: Option<&str>, url: &str) -> Option<&'static str> {
        let options = PostgresOptions::from_url(&StoreUrl::parse(url).unwrap()).unwrap();
        encryption(version, &options).issue.map(|issue| issue.code)
    }

    #[test]
    fn unverified_encryption_is_an_issue_unless_the_server_is_local() {
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
