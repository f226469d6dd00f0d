//! TLS of the server: the flags and the settings file, errors in the files, and warnings for the
//! operator.

use std::net::SocketAddr;
use std::time::{Duration, SystemTime};

use leasehold_server::{Tls, TlsError, TlsFiles};

use crate::cli::TlsArgs;
use crate::output::{Failure, count};

/// Remaining validity of a certificate below which the operator is warned.
const SOON: Duration = Duration::from_hours(14 * 24);

/// Returns the files that the flags name, else those of the settings.
pub(crate) fn chosen(flags: &TlsArgs, settings: Option<TlsFiles>) -> Result<Option<TlsFiles>, Failure> {
    let TlsArgs { tls_cert, tls_key, tls_client_ca } = flags.clone();
    let (cert, key, client_ca) = match settings {
        Some(TlsFiles { cert, key, client_ca }) => (Some(cert), Some(key), client_ca),
        None => (None, None, None),
    };
    // A certificate belongs to its key: both come from one source.
    let (cert, key) = if tls_cert.is_some() { (tls_cert, tls_key) } else { (cert, key) };
    let client_ca = tls_client_ca.or(client_ca);
    match (cert, key) {
        (Some(cert), Some(key)) => Ok(Some(TlsFiles { cert, key, client_ca })),
        _ if client_ca.is_some() => {
            Err(Failure::usage("--tls-client-ca requires a certificate of the server")
                .hint("add --tls-cert and --tls-key, or cert and key under [tls] in the settings"))
        }
        _ => Ok(None),
    }
}

/// Reads the files and checks them.
pub(super) fn load(files: TlsFiles) -> Result<Tls, Failure> {
    Tls::load(files).map_err(|error: TlsError| Failure::config(format!("TLS: {error}")).hint(error.hint()))
}

/// Remaining validity of a certificate, with the warning if it is short.
pub(crate) enum Validity {
    Good,
    Soon(String),
    Expired(String),
}

/// Returns the remaining validity of the certificates.
pub(crate) fn validity(tls: &Tls) -> Validity {
    let days = |time: Duration| count(time.as_secs() / (24 * 3600), "day");
    match tls.expires().duration_since(SystemTime::now()) {
        Ok(left) if left < SOON => Validity::Soon(format!("the TLS certificate expires in {}", days(left))),
        Ok(_) => Validity::Good,
        Err(ago) => Validity::Expired(format!("the TLS certificate expired {} ago", days(ago.duration()))),
    }
}

/// Warns if clients will soon refuse the certificate, or if traffic can be read on the network.
pub(super) fn warn(tls: Option<&Tls>, listen: SocketAddr) {
    match tls.map(validity) {
        Some(Validity::Good) => {}
        Some(Validity::Soon(message) | Validity::Expired(message)) => {
            tracing::warn!("{message}: renew it; the server reads the new files without a restart");
        }
        None if listen.ip().is_loopback() => {}
        None => tracing::warn!(
            "{listen} can be reached from other machines without TLS, so tokens and data can be read on the network: \
             set cert and key under [tls] in the settings (or --tls-cert and --tls-key), or let only a proxy with TLS connect"
        ),
    }
}
