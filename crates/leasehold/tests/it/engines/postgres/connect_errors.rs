//! Failed connections: each error names the problem, and none contains a secret.

use std::io::{Read, Write};

use leasehold::Error;
use leasehold::model::{LeaseId, LockName, LockOp, Renew, Token};
use leasehold::store::postgres::{PostgresOptions, PostgresStore};
use leasehold::store::{LockStore, Store, StoreUrl, connect};

use super::schema::Schema;
use crate::engines::support::engine_at;

async fn refused(url: &str) -> Error {
    let error = match connect(&StoreUrl::parse(url).unwrap()).await {
        Ok(store) => panic!("{} accepts the connection", store.url()),
        Err(error) => error,
    };
    let mut text = format!("{error} {error:?} {:?}", error.hint());
    let mut source = std::error::Error::source(&error);
    while let Some(cause) = source {
        text = format!("{text} {cause} {cause:?}");
        source = cause.source();
    }
    assert!(!text.contains("s3cr3t"), "{text}");
    error
}

#[tokio::test]
async fn a_wrong_password_is_not_permitted() {
    let url = engine_at("postgres");
    let error = refused(&url.replace(":leasehold@", ":s3cr3t@")).await;
    assert_eq!(error.code(), "STORE_NOT_PERMITTED", "{error:?}");
    assert!(error.to_string().contains("'leasehold' at 127.0.0.1:"), "{error}");
}

#[tokio::test]
async fn an_unknown_database_is_misconfigured() {
    let url = engine_at("postgres");
    let url = format!("{}/no_such_database", url.strip_suffix("/leasehold").unwrap());
    let error = refused(&url).await;
    assert_eq!(error.code(), "STORE_MISCONFIGURED", "{error:?}");
    assert!(error.to_string().contains("'no_such_database'"), "{error}");
}

#[tokio::test]
async fn a_missing_server_is_unavailable() {
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let error = refused(&format!("postgres://ada:s3cr3t@127.0.0.1:{port}/db")).await;
    assert_eq!(error.code(), "STORE_UNAVAILABLE", "{error:?}");
    assert!(error.is_retryable());
}

/// A process accepts connections and never answers.
#[tokio::test]
async fn a_silent_server_is_unavailable() {
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = silent.local_addr().unwrap().port();
    let error = refused(&format!("postgres://ada:s3cr3t@127.0.0.1:{port}/db")).await;
    assert_eq!(error.code(), "STORE_UNAVAILABLE", "{error:?}");
}

/// The server accepts encryption, and the connection is lost during the handshake.
#[tokio::test]
async fn a_connection_that_is_lost_during_the_handshake_is_unavailable() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        for connection in listener.incoming() {
            let Ok(mut connection) = connection else { return };
            // The request for encryption has 8 bytes.
            if connection.read_exact(&mut [0; 8]).and_then(|()| connection.write_all(b"S")).is_ok() {
                let _ = connection.read(&mut [0; 1024]);
            }
        }
    });
    let error = refused(&format!("postgres://ada:s3cr3t@127.0.0.1:{port}/db?sslmode=require")).await;
    assert_eq!(error.code(), "STORE_UNAVAILABLE", "{error:?}");
    assert!(error.is_retryable());
}

#[tokio::test]
async fn a_read_only_database_is_misconfigured() {
    let schema = Schema::new();
    let error = refused(&schema.url_with("options=-c%20default_transaction_read_only%3Don")).await;
    assert_eq!(error.code(), "STORE_MISCONFIGURED", "{error:?}");
    assert!(error.hint().unwrap().contains("primary"));
}

/// After a failover the former primary may be reachable as a replica for some seconds: a lease must not be given up.
#[tokio::test]
async fn a_server_that_has_become_read_only_is_unavailable() {
    let schema = Schema::new();
    let _tables = schema.store().await;
    let options = schema.options("options=-c%20default_transaction_read_only%3Don");
    let store = PostgresStore::connect(options).await.unwrap();
    let lease_id = LeaseId::from_uuid(uuid::Uuid::now_v7());
    let renew = LockOp::Renew(Renew { lease_id, token: Token::default(), ttl: None });
    let error = store.apply(&LockName::new("lock").unwrap(), &renew).await.unwrap_err();
    assert_eq!(error.code(), "STORE_UNAVAILABLE", "{error:?}");
    assert!(error.is_retryable());
    assert!(error.hint().unwrap().contains("primary"));
}

// --- encryption ------------------------------------------------------------------------------------------------------

fn ca() -> String {
    std::env::var("LEASEHOLD_TEST_CA").unwrap()
}

/// Returns the URL of the test server under another host name.
fn under(schema: &Schema, host: &str, settings: &str) -> String {
    schema.url_with(&format!("hostaddr=127.0.0.1&{settings}")).replace("@127.0.0.1:", &format!("@{host}:"))
}

async fn encryption(url: &str) -> String {
    let options = PostgresOptions::from_url(&StoreUrl::parse(url).unwrap()).unwrap();
    let store = PostgresStore::connect(options).await.unwrap();
    let findings = store.check_health().await.unwrap();
    findings.into_iter().find(|finding| finding.name == "encryption").unwrap().detail
}

#[tokio::test]
async fn the_right_certificate_for_the_right_host_is_trusted() {
    let schema = Schema::new();
    for (host, mode) in
        [("localhost", "verify-full"), ("127.0.0.1", "verify-full"), ("db.example", "verify-ca")]
    {
        let url = under(&schema, host, &format!("sslmode={mode}&sslrootcert={}", ca()));
        assert!(encryption(&url).await.starts_with("TLS"), "{host} {mode}");
    }
    assert!(encryption(&schema.url_with("sslmode=require")).await.starts_with("TLS"));
    assert!(encryption(&schema.url_with("")).await.starts_with("TLS"), "encrypted if the server can");
    assert!(encryption(&schema.url_with("sslmode=disable")).await.starts_with("off"));
}

#[tokio::test]
async fn a_certificate_for_another_host_is_refused() {
    let schema = Schema::new();
    let error =
        refused(&under(&schema, "db.example", &format!("sslmode=verify-full&sslrootcert={}", ca()))).await;
    assert_eq!(error.code(), "STORE_MISCONFIGURED", "{error:?}");
    assert!(error.hint().unwrap().contains("sslrootcert"));
}

#[tokio::test]
async fn a_certificate_of_an_untrusted_ca_is_refused() {
    let schema = Schema::new();
    let other = std::env::var("LEASEHOLD_TEST_OTHER_CA").unwrap();
    for mode in ["verify-full", "verify-ca", "require"] {
        let error =
            refused(&under(&schema, "localhost", &format!("sslmode={mode}&sslrootcert={other}"))).await;
        assert_eq!(error.code(), "STORE_MISCONFIGURED", "{mode}: {error:?}");
    }
    // The system does not trust the tests' certificates.
    let error = refused(&under(&schema, "localhost", "sslmode=verify-full")).await;
    assert_eq!(error.code(), "STORE_MISCONFIGURED", "{error:?}");
    let error = refused(&under(&schema, "localhost", "sslmode=verify-full&sslrootcert=/no/such/file")).await;
    assert_eq!(error.code(), "STORE_MISCONFIGURED", "{error:?}");
}
