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
/// A command line is cut to so many characters.
const COMMAND_CHARS: usize = 200;

impl Identity {
    pub(crate) fn here() -> Self {
        let uid = Uid::current();
        let known = User::from_uid(uid).ok().flatten();
        Self { user: known.map_or_else(|| format!("uid{uid}"), |user| user.name), host: host_name() }
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
        let facts =
            [("user", self.user.clone()), ("host", self.host.clone()), ("command", command_line(command))];
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

fn command_line(command: &[OsString]) -> String {
    let words: Vec<_> = command.iter().map(|word| word.to_string_lossy()).collect();
    let line = words.join(" ");
    match line.char_indices().nth(COMMAND_CHARS) {
        Some((end, _)) => format!("{}…", &line[..end]),
        None => line,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_command_is_cut() {
        let line = |words: &[&str]| command_line(&words.iter().map(OsString::from).collect::<Vec<_>>());
        assert_eq!(line(&["echo", "a b"]), "echo a b");
        let cut = line(&[&"é".repeat(300)]);
        assert_eq!(cut, format!("{}…", "é".repeat(200)));
    }

    #[test]
    fn a_holder_names_user_host_and_process() {
        let me = Identity::here();
        let (holder, person) = (me.holder().unwrap().to_string(), me.person().unwrap().to_string());
        assert_eq!(holder, format!("{person}:{}", std::process::id()));
    }
}
