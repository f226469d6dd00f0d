//! Who is at the keyboard: the holder's name and the facts that are stored with a lease.

use std::ffi::OsString;

use leasehold::model::{Holder, Invalid, LockName, Token};
use leasehold::store::host_name;
use nix::unistd::{Uid, User};

/// The person and the machine.
#[derive(Debug, Clone)]
pub(crate) struct Identity {
    user: String,
    host: String,
}

/// Who holds the locks of the `leasehold run` around us, and which they are.
const AROUND: &str = "LEASEHOLD_HOLDER";
const LOCK: &str = "LEASEHOLD_LOCK";
const LOCKS: &str = "LEASEHOLD_LOCKS";
/// The tokens of its first lock: in a task, the first of these is the task's.
const TOKENS: [&str; 2] = ["LEASEHOLD_TOKEN", "LEASEHOLD_LOCK_TOKEN"];
/// A program's name is cut to so many characters.
const PROGRAM_CHARS: usize = 200;

impl Identity {
    pub(crate) fn here() -> Self {
        Self { user: user(), host: host_name() }
    }

    /// This process as a holder: `user@host:pid`.
    pub(crate) fn holder(&self) -> Result<Holder, Invalid> {
        Holder::new(format!("{}@{}:{}", self.user, self.host, std::process::id()))
    }

    /// The person, for what is done by hand: `user@host`.
    pub(crate) fn person(&self) -> Result<Holder, Invalid> {
        Holder::new(format!("{}@{}", self.user, self.host))
    }

    /// What everybody may know of a lease.
    pub(crate) fn facts(&self, command: &[OsString]) -> Vec<(String, String)> {
        let facts = [("user", self.user.clone()), ("host", self.host.clone()), ("command", program(command))];
        facts.map(|(key, value)| (key.to_owned(), value)).into()
    }
}

/// A lease on a lock, as it is seen from outside.
#[derive(Clone, Copy)]
pub(crate) struct Seen<'a> {
    pub(crate) lock: &'a LockName,
    pub(crate) holder: &'a Holder,
    pub(crate) token: Token,
}

/// Whether a lease is ours: its holder was named by `--holder`, or it is one of the `leasehold run` around us. A name made
/// of user, host and process number is not enough: the first process of each container is number 1, and containers may
/// share a host name.
pub(crate) fn is_mine(seen: Seen<'_>, named: Option<&Holder>) -> bool {
    named == Some(seen.holder) || is_around(seen, |name| std::env::var(name).ok())
}

fn is_around(seen: Seen<'_>, variable: impl Fn(&str) -> Option<String>) -> bool {
    if variable(AROUND).is_none_or(|around| around != seen.holder.as_str()) {
        return false;
    }
    if variable(LOCK).is_some_and(|first| first == seen.lock.as_str()) {
        return TOKENS.iter().any(|name| variable(name).is_some_and(|token| token == seen.token.to_string()));
    }
    variable(LOCKS).is_some_and(|locks| locks.lines().any(|lock| lock == seen.lock.as_str()))
}

/// Whether a `leasehold run` is around us.
pub(crate) fn is_inside_run() -> bool {
    std::env::var_os(AROUND).is_some()
}

/// The name that the user is logged in under. The system's list of users is asked only if nobody has said it yet: it may
/// be on the network, and slow.
fn user() -> String {
    let said = ["LOGNAME", "USER"].into_iter().filter_map(|name| std::env::var(name).ok());
    let known = said.into_iter().find(|user| Holder::new(user).is_ok());
    known.unwrap_or_else(|| {
        let uid = Uid::current();
        let found = User::from_uid(uid).ok().flatten();
        found.map_or_else(|| format!("uid{uid}"), |user| user.name)
    })
}

/// The program, without its arguments: there may be secrets among them.
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
    fn a_command_is_told_without_its_arguments() {
        let told = |words: &[&str]| program(&words.iter().map(OsString::from).collect::<Vec<_>>());
        assert_eq!(told(&["curl", "-H", "Authorization: secret"]), "curl");
        assert_eq!(told(&[]), "");
        assert_eq!(told(&[&"é".repeat(300)]), format!("{}…", "é".repeat(200)));
    }

    #[test]
    fn a_lease_of_the_run_around_is_known_by_its_lock_and_token_not_by_its_holder_alone() {
        let (holder, token) = (Holder::new("root@vm:1").unwrap(), "1700000000000007".parse().unwrap());
        let is_ours = |lock: &str, token: Token| {
            let lock = LockName::new(lock).unwrap();
            is_around(Seen { lock: &lock, holder: &holder, token }, |name| {
                let value = match name {
                    AROUND => "root@vm:1",
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
        let seen = Seen { lock: &LockName::new("a").unwrap(), holder: &holder, token };
        assert!(!is_around(seen, |_| None));
    }

    #[test]
    fn a_holder_names_user_host_and_process() {
        let me = Identity::here();
        let (holder, person) = (me.holder().unwrap().to_string(), me.person().unwrap().to_string());
        assert_eq!(holder, format!("{person}:{}", std::process::id()));
    }
}
