//! Identity of the caller: the holder's name and the metadata stored with a lease.

use std::ffi::OsString;

use leasehold::model::{Holder, LockName, Token, ValidationError};
use leasehold::store::host_name;
use nix::unistd::{Uid, User};

#[derive(Debug, Clone)]
pub(crate) struct Identity {
    user: String,
    host: String,
}

/// Variables with the holder and the locks of the enclosing `leasehold run`.
const HOLDER: &str = "LEASEHOLD_HOLDER";
const LOCK: &str = "LEASEHOLD_LOCK";
const LOCKS: &str = "LEASEHOLD_LOCKS";
/// Variables with the token of its first lock: in a task, the first of them is the task's token.
const TOKENS: [&str; 2] = ["LEASEHOLD_TOKEN", "LEASEHOLD_LOCK_TOKEN"];
const PROGRAM_CHARS: usize = 200;

impl Identity {
    pub(crate) fn current() -> Self {
        Self { user: user(), host: host_name() }
    }

    /// Returns this process as a holder: `user@host:pid`.
    pub(crate) fn holder(&self) -> Result<Holder, ValidationError> {
        Holder::new(format!("{}@{}:{}", self.user, self.host, std::process::id()))
    }

    /// Returns the user, for manual actions: `user@host`.
    pub(crate) fn operator(&self) -> Result<Holder, ValidationError> {
        Holder::new(format!("{}@{}", self.user, self.host))
    }

    /// Returns the metadata of a lease, which every user of the store can see.
    pub(crate) fn metadata(&self, command: &[OsString]) -> Vec<(String, String)> {
        let metadata =
            [("user", self.user.clone()), ("host", self.host.clone()), ("command", program(command))];
        metadata.map(|(key, value)| (key.to_owned(), value)).into()
    }
}

/// Whether a lease is the caller's own: its holder was specified by `--holder`, or it belongs to
/// the enclosing `leasehold run`. A name made of user, host and pid is not enough: the first
/// process of each container has pid 1, and containers may share a host name.
pub(crate) fn is_own_lease(lock: &LockName, holder: &Holder, token: Token, named: Option<&Holder>) -> bool {
    let variable = |name: &str| std::env::var(name).ok();
    named == Some(holder) || belongs_to_enclosing_run(lock, holder, token, variable)
}

fn belongs_to_enclosing_run(
    lock: &LockName,
    holder: &Holder,
    token: Token,
    variable: impl Fn(&str) -> Option<String>,
) -> bool {
    let is = |name: &str, value: &str| variable(name).is_some_and(|set| set == value);
    if !is(HOLDER, holder.as_str()) {
        return false;
    }
    if is(LOCK, lock.as_str()) {
        return TOKENS.iter().any(|name| is(name, &token.to_string()));
    }
    variable(LOCKS).is_some_and(|locks| locks.lines().any(|held| held == lock.as_str()))
}

pub(crate) fn is_inside_run() -> bool {
    std::env::var_os(HOLDER).is_some()
}

/// Returns the login name of the user. The user database is queried only if no variable contains
/// the name: the database may be on the network, and slow.
fn user() -> String {
    let variables = ["LOGNAME", "USER"].into_iter().filter_map(|name| std::env::var(name).ok());
    let known = variables.into_iter().find(|user| Holder::new(user).is_ok());
    known.unwrap_or_else(|| {
        let uid = Uid::current();
        let found = User::from_uid(uid).ok().flatten();
        found.map_or_else(|| format!("uid{uid}"), |user| user.name)
    })
}

/// Returns the program without its arguments, which may contain secrets.
fn program(command: &[OsString]) -> String {
    let program = command.first().map(|word| word.to_string_lossy()).unwrap_or_default();
    match program.char_indices().nth(PROGRAM_CHARS) {
        Some((end, _)) => format!("{}…", &program[..end]),
        None => program.into_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_is_recorded_without_its_arguments() {
        let recorded = |words: &[&str]| program(&words.iter().map(OsString::from).collect::<Vec<_>>());
        assert_eq!(recorded(&["curl", "-H", "Authorization: secret"]), "curl");
        assert_eq!(recorded(&[]), "");
        assert_eq!(recorded(&[&"é".repeat(300)]), format!("{}…", "é".repeat(200)));
    }

    #[test]
    fn a_lease_of_the_enclosing_run_is_known_by_its_lock_and_token() {
        let (holder, token) = (Holder::new("root@vm:1").unwrap(), "1700000000000007".parse().unwrap());
        let is_ours = |lock: &str, token: Token| {
            let lock = LockName::new(lock).unwrap();
            belongs_to_enclosing_run(&lock, &holder, token, |name| {
                let value = match name {
                    HOLDER => "root@vm:1",
                    LOCK => "a",
                    LOCKS => "a\nb c",
                    "LEASEHOLD_TOKEN" => "1700000000000007",
                    _ => return None,
                };
                Some(value.to_owned())
            })
        };
        let other = "1700000000000009".parse().unwrap();
        assert!(is_ours("a", token) && is_ours("b c", other));
        assert!(!is_ours("a", other), "another container holds it under the same name");
        assert!(!is_ours("c", token));
        assert!(!belongs_to_enclosing_run(&LockName::new("a").unwrap(), &holder, token, |_| None));
    }

    #[test]
    fn a_holder_names_user_host_and_process() {
        let me = Identity::current();
        let (holder, operator) = (me.holder().unwrap().to_string(), me.operator().unwrap().to_string());
        assert_eq!(holder, format!("{operator}:{}", std::process::id()));
    }
}
