//! Commands for a POSIX shell, which are shown to people.

/// Quotes a word for a POSIX shell, if that is necessary.
pub fn shell_word(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./:@%+=,".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        word.to_owned()
    } else {
        format!("'{}'", word.replace('\'', "'\\''"))
    }
}

/// Returns a command about a lock: the command without its arguments, the name of the lock, and the options.
/// A name that would be parsed as an option comes last, after `--`.
pub fn lock_command(command: &str, lock: &str, options: &str) -> String {
    let name = shell_word(lock);
    let space = if options.is_empty() { "" } else { " " };
    if is_like_option(lock) {
        format!("{command}{space}{options} -- {name}")
    } else {
        format!("{command} {name}{space}{options}")
    }
}

/// Returns the command that runs another one under the lock.
pub(crate) fn run_command(program: &str, lock: &str, options: &str) -> String {
    let run = lock_command(&format!("{program} run"), lock, options);
    if is_like_option(lock) { format!("{run} COMMAND") } else { format!("{run} -- COMMAND") }
}

/// Returns an option with the name of a lock as its value.
pub(crate) fn option(option: &str, lock: &str) -> String {
    let separator = if is_like_option(lock) { '=' } else { ' ' };
    format!("{option}{separator}{}", shell_word(lock))
}

fn is_like_option(word: &str) -> bool {
    word.starts_with('-')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_quoted_only_if_they_must_be() {
        assert_eq!(shell_word("deploy/prod-1"), "deploy/prod-1");
        assert_eq!(shell_word("a b"), "'a b'");
        assert_eq!(shell_word("it's; rm -rf $HOME"), "'it'\\''s; rm -rf $HOME'");
        assert_eq!(shell_word("$(me)"), "'$(me)'");
        assert_eq!(shell_word(""), "''");
    }

    #[test]
    fn a_name_like_an_option_comes_after_the_options() {
        assert_eq!(lock_command("leasehold locks why", "a", ""), "leasehold locks why a");
        assert_eq!(lock_command("leasehold locks why", "-a b", ""), "leasehold locks why -- '-a b'");
        assert_eq!(lock_command("locks wait", "a", "--for free"), "locks wait a --for free");
        assert_eq!(lock_command("locks wait", "--a", "--for free"), "locks wait --for free -- --a");
        assert_eq!(run_command("leasehold", "a", "--wait 10m"), "leasehold run a --wait 10m -- COMMAND");
        assert_eq!(run_command("leasehold", "-a", "--wait 10m"), "leasehold run --wait 10m -- -a COMMAND");
        assert_eq!(
            (option("--with", "b").as_str(), option("--with", "-b").as_str()),
            ("--with b", "--with=-b")
        );
    }
}
