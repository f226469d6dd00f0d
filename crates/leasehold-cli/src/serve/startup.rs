//! Startup of a server: its plan and TLS files; waits for the store, determines the access of callers, and
//! applies the settings to the store.

use std::ffi::OsString;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use leasehold::model::{MisfirePolicy, RetryPolicy};
use leasehold::store::{StoreUrl, local_token_or, local_token_path};
use leasehold::{Error, Leasehold, StoreErrorKind};
use leasehold_server::access::{FixedToken, TokenStore};
use leasehold_server::config::{ScheduleSettings, Settings};
use leasehold_server::{Access, CommandSettings, Role, Runner, Tls, TlsError, TlsFiles};

use crate::cli::TlsArgs;
use crate::config::StoreChoice;
use crate::output::{Failure, Printer, count};
use crate::run::{Contain, Launcher, MonitorPool};
use crate::work::ExecutionPlan;

/// Interval between attempts to reach the store.
const RETRY_INTERVAL: Duration = Duration::from_secs(1);

pub(super) struct Opened {
    pub(super) leasehold: Leasehold,
    pub(super) access: Access,
    /// Message to the operator about how callers are authenticated.
    pub(super) announcement: String,
}

pub(super) struct Startup<'a> {
    pub(super) store_url: &'a str,
    pub(super) shown_store: &'a str,
    pub(super) settings: &'a Settings,
    pub(super) listen: SocketAddr,
    pub(super) printer: Printer,
}

impl Startup<'_> {
    /// Refuses an address that is reachable from other machines if there is no token, before the
    /// server listens on it. If the store cannot be reached the check is repeated later: until then
    /// no caller is admitted.
    pub(super) async fn check_exposed_address(&self) -> Result<(), Failure> {
        if self.listen.ip().is_loopback() || !self.settings.tokens.is_empty() {
            return Ok(());
        }
        match Leasehold::connect(self.store_url).await {
            Ok(leasehold) => self.access(&leasehold).await?.map(|_| ()),
            Err(Error::Store { kind: StoreErrorKind::Unavailable, .. }) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Opens the store as soon as it can be reached. Errors that need an operator are returned immediately.
    pub(super) async fn open(&self) -> Result<Opened, Failure> {
        let mut reported = false;
        loop {
            let error = match self.try_open().await {
                Ok(opened) => return opened,
                Err(error) => error,
            };
            if !matches!(error, Error::Store { kind: StoreErrorKind::Unavailable, .. }) {
                return Err(error.into());
            }
            if !reported {
                reported = true;
                let store = self.shown_store;
                self.printer.message(format_args!(
                    "leasehold: the store {store} cannot be reached yet; requests are answered with 503 until it can: {error}"
                ));
            }
            tokio::time::sleep(RETRY_INTERVAL).await;
        }
    }

    async fn try_open(&self) -> Result<Result<Opened, Failure>, Error> {
        let leasehold = Leasehold::connect(self.store_url).await?;
        let (access, announcement) = match self.access(&leasehold).await? {
            Ok(found) => found,
            Err(failure) => return Ok(Err(failure)),
        };
        if self.settings.tokens.is_empty() && tokens(&leasehold).await? == Tokens::Ended {
            self.printer.message(
                "leasehold: every token has expired or was revoked, so no request is admitted; \
                 create one with: leasehold token new --name NAME --role admin",
            );
        }
        for schedule in &self.settings.schedules {
            set_schedule(&leasehold, schedule).await?;
        }
        for (queue, retention) in &self.settings.retentions {
            leasehold.tasks()?.set_retention(queue.as_ref(), Some(*retention)).await?;
        }
        Ok(Ok(Opened { leasehold, access, announcement }))
    }

    /// Returns which callers are admitted, and a message about it: those with a token, if there is or ever
    /// was one; otherwise those that can read the local token, or with `--open` every process on this
    /// machine.
    async fn access(&self, leasehold: &Leasehold) -> Result<Result<(Access, String), Failure>, Error> {
        let fixed = &self.settings.tokens;
        if !fixed.is_empty() || tokens(leasehold).await? != Tokens::Never {
            if self.settings.open {
                self.printer.message("leasehold: --open has no effect: the store has, or had, tokens");
            }
            let announcement = "leasehold: only requests with a token are admitted".to_owned();
            return Ok(Ok((Access::Tokens(fixed.clone()), announcement)));
        }
        if !self.listen.ip().is_loopback() {
            let message =
                format!("{} can be reached from other machines, and there is no token", self.listen);
            let failure = Failure::config(message)
                .hint("create one with: leasehold token new --name NAME --role admin")
                .hint("or listen on this machine alone: --listen 127.0.0.1:7420");
            return Ok(Err(failure));
        }
        if self.settings.open {
            let announcement =
                "leasehold: open: every process on this machine has full access without a token".to_owned();
            return Ok(Ok((Access::Open, announcement)));
        }
        Ok(local_token())
    }
}

/// Admits the callers that can read the local token, which the first start creates.
fn local_token() -> Result<(Access, String), Failure> {
    let no_state_folder = || {
        let message =
            "there is no folder for the local token: neither XDG_STATE_HOME nor HOME is an absolute path";
        Failure::config(message)
            .hint("set XDG_STATE_HOME to a folder of this user")
            .hint("or create a token: leasehold token new --name NAME --role admin")
            .hint("or admit every process of this machine: --open")
    };
    let path = local_token_path().ok_or_else(no_state_folder)?;
    let unusable = |reason: String| {
        Failure::config(format!("the token in {} cannot be used: {reason}", path.display()))
            .hint("remove the file: the next start creates another one")
    };
    let token = local_token_or(&path, || FixedToken::generate().0);
    let token = token.map_err(|error| unusable(error.to_string()))?;
    let fixed = FixedToken::of_text("local", Role::Admin, &token)
        .ok_or_else(|| unusable("it is not a token".to_owned()))?;
    let announcement = format!(
        "leasehold: only requests with the token in {} are admitted; leasehold commands of this user find it, \
         other programs send it: Authorization: Bearer $(leasehold token local)",
        path.display()
    );
    Ok((Access::Tokens(vec![fixed]), announcement))
}

#[derive(PartialEq, Eq)]
enum Tokens {
    /// There never was a token.
    Never,
    /// All tokens have expired or were revoked.
    Ended,
    /// At least one token is valid.
    Active,
}

/// Returns the tokens of the store. A store without documents cannot have any.
async fn tokens(leasehold: &Leasehold) -> Result<Tokens, Error> {
    if leasehold.store().documents().is_none() {
        return Ok(Tokens::Never);
    }
    let desk = TokenStore::new(leasehold.clone());
    if desk.list().await?.iter().any(|token| token.active) {
        return Ok(Tokens::Active);
    }
    Ok(if desk.is_empty().await? { Tokens::Never } else { Tokens::Ended })
}

async fn set_schedule(leasehold: &Leasehold, settings: &ScheduleSettings) -> Result<(), Error> {
    let ScheduleSettings { name, cron, zone, queue, payload, lock, jitter, .. } = settings;
    let mut schedule = leasehold
        .schedule_to(name.as_str(), cron.as_str(), queue, payload.clone())
        .missed(MisfirePolicy::RunLast);
    if let Some(zone) = zone {
        schedule = schedule.zone(zone.as_str());
    }
    if let Some(jitter) = jitter {
        schedule = schedule.jitter(jitter.as_duration());
    }
    if let Some(lock) = lock {
        // A retry of an execution would be another execution.
        schedule = schedule.lock(lock).retries(RetryPolicy { attempts: 1, ..RetryPolicy::default() });
    }
    schedule.await.map(|_| ())
}

const DEFAULT_ADDRESS: ([u8; 4], u16) = ([127, 0, 0, 1], 7420);

/// Variables that every command inherits.
const INHERITED: [&str; 4] = ["PATH", "HOME", "LANG", "TZ"];

pub(crate) struct ServePlan {
    pub(crate) settings: Settings,
    pub(crate) tls: Option<Tls>,
    pub(super) listen: SocketAddr,
    pub(super) store_url: String,
    pub(super) shown_store: String,
    pub(super) pool: Arc<MonitorPool>,
    pub(super) executions: Vec<ExecutionPlan>,
}

impl ServePlan {
    /// Checks that everything that the settings name exists. Must be called while this process has
    /// one thread.
    pub(crate) fn new(
        settings: Settings,
        listen: Option<SocketAddr>,
        store: &StoreChoice,
        contain: Contain,
    ) -> Result<Self, Failure> {
        StoreUrl::parse(&store.url)?;
        let pool = Arc::new(MonitorPool::new());
        let mut executions = Vec::new();
        for workflow in &settings.workflows {
            if let Runner::Command(command) = &workflow.runner {
                if !command.directory.is_dir() {
                    let folder = command.directory.display();
                    let message = format!("workflow '{}': there is no folder {folder}", workflow.name);
                    return Err(Failure::config(message).hint("create it, or set another directory"));
                }
                let argv = command.argv.iter().map(OsString::from).collect();
                let (directory, variables) = (command.directory.clone(), visible_variables(command));
                let (workflow, ttl) = (workflow.name.clone(), workflow.ttl);
                let launcher = Launcher::clean(argv, directory, variables, ttl, contain, pool.clone());
                let launcher = launcher.map_err(|failure| {
                    let message = failure.message().replace("--", "");
                    failure.with_message(format!("workflow '{workflow}': {message}"))
                })?;
                executions.push(ExecutionPlan { workflow, ttl, launcher });
            }
        }
        let tls = settings.tls.clone().map(load).transpose()?;
        let listen = listen.or(settings.listen).unwrap_or_else(|| DEFAULT_ADDRESS.into());
        let (store_url, shown_store) = (store.absolute(), store.redacted());
        Ok(Self { settings, tls, listen, store_url, shown_store, pool, executions })
    }
}

/// Returns the variables of this process that the command may see.
fn visible_variables(command: &CommandSettings) -> Vec<(String, OsString)> {
    let requested = command.environment.iter().map(String::as_str);
    let names = INHERITED.into_iter().chain(requested.filter(|name| !INHERITED.contains(name)));
    names.filter_map(|name| Some((name.to_owned(), std::env::var_os(name)?))).collect()
}

/// Remaining validity of a certificate below which the operator is warned.
const SOON: Duration = Duration::from_hours(14 * 24);

/// Returns the files that the flags name, else those of the settings.
pub(crate) fn chosen(flags: &TlsArgs, settings: Option<TlsFiles>) -> Result<Option<TlsFiles>, Failure> {
    let TlsArgs { tls_cert, tls_key, tls_client_ca } = flags.clone();
    let (cert, key, client_ca) = match settings {
        Some(TlsFiles { cert, key, client_ca, .. }) => (Some(cert), Some(key), client_ca),
        None => (None, None, None),
    };
    // A certificate belongs to its key: both come from one source.
    let (cert, key) = if tls_cert.is_some() { (tls_cert, tls_key) } else { (cert, key) };
    let client_ca = tls_client_ca.or(client_ca);
    match (cert, key) {
        (Some(cert), Some(key)) => Ok(Some(TlsFiles::new(cert, key, client_ca))),
        _ if client_ca.is_some() => {
            Err(Failure::usage("--tls-client-ca requires a certificate of the server")
                .hint("add --tls-cert and --tls-key, or cert and key under [tls] in the settings"))
        }
        _ => Ok(None),
    }
}

pub(super) fn load(files: TlsFiles) -> Result<Tls, Failure> {
    Tls::load(files).map_err(|error: TlsError| Failure::config(format!("TLS: {error}")).hint(error.hint()))
}

/// Remaining validity of a certificate, with the warning if it is short.
pub(crate) enum Validity {
    Good,
    Soon(String),
    Expired(String),
}

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
