//! Startup of the store: waits for it, determines the access of callers, and applies the settings
//! to it.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use leasehold::model::{MisfirePolicy, RetryPolicy};
use leasehold::store::{local_token_or, local_token_path};
use leasehold::{Error, Leasehold, StoreErrorKind};
use leasehold_server::access::{FixedToken, TokenStore};
use leasehold_server::config::{ScheduleSettings, Settings};
use leasehold_server::{Access, Role};

use crate::output::{Failure, Printer};

/// Interval between attempts to reach the store.
const RETRY_INTERVAL: Duration = Duration::from_secs(1);

/// Store that is ready, and the access of callers.
pub(super) struct Opened {
    pub(super) leasehold: Leasehold,
    pub(super) access: Access,
    /// Form of access, to be announced to the operator.
    pub(super) authentication: Authentication,
}

/// How callers are authenticated.
pub(super) enum Authentication {
    /// Without a token.
    Open,
    /// With a token that was created for them.
    Tokens,
    /// With the token in this file.
    LocalToken(PathBuf),
}

/// Parameters for opening the store.
pub(super) struct Startup<'a> {
    pub(super) store_url: &'a str,
    pub(super) shown_store: &'a str,
    pub(super) settings: &'a Settings,
    pub(super) listen: SocketAddr,
    /// Whether callers without a token are admitted.
    pub(super) open: bool,
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

    /// Opens the store as soon as it can be reached. Errors that need an operator are returned
    /// immediately.
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
        let (access, authentication) = match self.access(&leasehold).await? {
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
        Ok(Ok(Opened { leasehold, access, authentication }))
    }

    /// Returns which callers are admitted: those with a token, if there is or ever was one;
    /// otherwise those that can read the local token, or with `--open` every process on this
    /// machine.
    async fn access(
        &self,
        leasehold: &Leasehold,
    ) -> Result<Result<(Access, Authentication), Failure>, Error> {
        let fixed = &self.settings.tokens;
        if !fixed.is_empty() || tokens(leasehold).await? != Tokens::Never {
            if self.open {
                self.printer.message("leasehold: --open has no effect: the store has, or had, tokens");
            }
            return Ok(Ok((Access::Tokens(fixed.clone()), Authentication::Tokens)));
        }
        if !self.listen.ip().is_loopback() {
            let message =
                format!("{} can be reached from other machines, and there is no token", self.listen);
            let failure = Failure::config(message)
                .hint("create one with: leasehold token new --name NAME --role admin")
                .hint("or listen on this machine alone: --listen 127.0.0.1:7420");
            return Ok(Err(failure));
        }
        if self.open {
            return Ok(Ok((Access::Open, Authentication::Open)));
        }
        Ok(local_token())
    }
}

/// Admits the callers that can read the local token, which the first start creates.
fn local_token() -> Result<(Access, Authentication), Failure> {
    let no_state_folder = || {
        let message = "there is no folder for the local token: neither XDG_STATE_HOME nor HOME is set";
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
    Ok((Access::Tokens(vec![fixed]), Authentication::LocalToken(path)))
}

/// Tokens of a store.
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
    if leasehold.store().docs().is_none() {
        return Ok(Tokens::Never);
    }
    let desk = TokenStore::new(leasehold.clone());
    if desk.list().await?.iter().any(|token| token.active) {
        return Ok(Tokens::Active);
    }
    Ok(if desk.is_empty().await? { Tokens::Never } else { Tokens::Ended })
}

async fn set_schedule(leasehold: &Leasehold, settings: &ScheduleSettings) -> Result<(), Error> {
    let ScheduleSettings { name, cron, zone, queue, payload, lock, jitter } = settings;
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
