//! Who is at the keyboard: the holder's name and the facts that are stored with a lease.

use std::ffi::OsString;

use leasehold::model::{Holder, Invalid};
use leasehold::store::host_name;
use nix::unistd::{Uid, User};

/// The person and the machine.
#[derive(Debug, Clone)]
pub(crate) struct Identity {
    user: String,
    host: String,
}

/// Who holds the locks of the `leasehold run` around us.
const AROUND: &str = "LEASEHOLD_HOLDER";
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

/// Whether this holder is the one on whose behalf we run: named by `--holder`, or by the `leasehold run` around us.
pub(crate) fn is_me(holder: &Holder, named: Option<&Holder>) -> bool {
    let around = std::env::var_os(AROUND);
    named == Some(holder) || around.is_some_and(|around| around == holder.as_str())
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
    fn a_holder_names_user_host_and_process() {
        let me = Identity::here();
        let (holder, person) = (me.holder().unwrap().to_string(), me.person().unwrap().to_string());
        assert_eq!(holder, format!("{person}:{}", std::process::id()));
    }
}
