//! Explanation of `locks why` in sentences: the holders, whether they are alive, the waiters, and
//! what would free the lock.

use leasehold::LockStatus;
use leasehold::client::{EventView, HolderStatus};
use leasehold::model::{EventKind, Mode, Status};
use serde::Serialize;

use super::text::{Style, block, count, lines, shell_word, visible};
use super::times::{ago, short, when};

#[derive(Debug, Serialize)]
pub(crate) struct Explanation<'a> {
    name: String,
    /// Same as `name`, under the key that older scripts may use.
    lock: String,
    #[serde(rename = "explanation")]
    sentences: Vec<String>,
    commands: Vec<Remedy>,
    status: &'a LockStatus,
}

#[derive(Debug, Serialize)]
struct Remedy {
    to: &'static str,
    command: String,
}

/// Maximum number of waiters listed by name; the rest is only counted.
const NAMED_WAITERS: usize = 10;

impl<'a> Explanation<'a> {
    /// Explains the status of a lock. `last` is the newest event of the lock; `program` is the command
    /// line prefix that makes this program use the same store.
    pub(crate) fn new(
        status: &'a LockStatus,
        last: Option<&EventView>,
        is_own_lease: impl Fn(&HolderStatus) -> bool,
        program: &str,
    ) -> Self {
        let mut sentences = Vec::new();
        if status.holders.is_empty() {
            sentences.push(format!("'{}' is not held.", status.name));
            sentences.push(last_event(status, last));
        }
        for held in &status.holders {
            sentences.extend(holder(status, held, is_own_lease(held)));
        }
        sentences.push(queue(status));
        let sentences = sentences.iter().map(|sentence| visible(sentence)).collect();
        let [name, lock] = [(); 2].map(|()| status.name.to_string());
        Self { name, lock, sentences, commands: remedies(status, program), status }
    }

    pub(crate) fn text(&self, style: Style) -> String {
        let commands: Vec<_> =
            self.commands.iter().map(|remedy| (remedy.to, remedy.command.clone())).collect();
        let head = [String::new(), style.bold("What to do:")];
        lines(self.sentences.iter().cloned().chain(head)) + &block(2, &commands)
    }
}

fn last_event(status: &LockStatus, last: Option<&EventView>) -> String {
    let Some(event) = last else {
        return "It has no recorded events.".to_owned();
    };
    let when = when(status.now, event.at);
    match event.kind {
        EventKind::Released => format!("{} released it at {when}.", event.holder),
        EventKind::Expired => format!("The lease of {} expired at {when}.", event.holder),
        kind => format!("The last event: {kind}, {}, at {when}.", event.holder),
    }
}

fn holder(status: &LockStatus, held: &HolderStatus, is_own: bool) -> Vec<String> {
    let now = status.now;
    let name = if is_own { format!("yourself ({})", held.holder) } else { held.holder.to_string() };
    let mode = match held.mode {
        Mode::Shared => "shared".to_owned(),
        Mode::Exclusive if held.slots > 1 => format!("in one of {} slots", held.slots),
        Mode::Exclusive => "alone".to_owned(),
    };
    let since = when(now, held.acquired_at);
    let first = status.holders.first().is_none_or(|first| first.token == held.token);
    let begin = match (first, held.expires_at <= now) {
        (true, false) => format!("'{}' is held by", status.name),
        (true, true) => format!("'{}' was held by", status.name),
        (false, false) => "It is also held by".to_owned(),
        (false, true) => "It was also held by".to_owned(),
    };
    let mut sentences = vec![format!("{begin} {name} since {since}, {mode}, with token {}.", held.token)];
    sentences.extend(purpose(held));
    sentences.push(expiry(status, held));
    if let Some(asked) = &held.release_request {
        let reason = asked.reason.as_ref().map(|reason| format!(" ({reason})")).unwrap_or_default();
        let when = ago(now, asked.at);
        // The reply to a renewal carries the release request.
        let learns = if held.renewed_at >= asked.at {
            "it was notified at its last renewal"
        } else {
            "it is notified at once if the store can, else at its next renewal"
        };
        sentences.push(format!("{} asked it to stop {when}{reason}; {learns}.", asked.by));
    }
    sentences
}

/// Returns sentences about the work of a holder, from its metadata.
fn purpose(held: &HolderStatus) -> Vec<String> {
    let meta = |key| held.metadata.get(key).map(visible);
    let location = match (meta("user"), meta("host"), meta("pid")) {
        (Some(user), Some(host), Some(pid)) => format!(" (user {user} on {host}, process {pid})"),
        (Some(user), Some(host), None) => format!(" (user {user} on {host})"),
        _ => String::new(),
    };
    let command = meta("command").map(|command| format!("It is for: {command}{location}."));
    let reason = meta("reason").map(|reason| format!("The reason given: {reason}."));
    command.into_iter().chain(reason).collect()
}

/// Returns a sentence on whether the lease is alive, and until when.
fn expiry(status: &LockStatus, held: &HolderStatus) -> String {
    let now = status.now;
    let until = when(now, held.expires_at);
    if held.expires_at <= now {
        return format!("Its lease expired at {until}: the next acquire, or a sweep, frees it.");
    }
    if held.stale {
        return "Its process has exited: the next acquire, or a sweep, frees it.".to_owned();
    }
    if held.status == Status::Released {
        return format!("Its work is done; the lease only blocks other holders until {until}.");
    }
    let renewed = match held.renewals {
        0 => "It has not been renewed yet".to_owned(),
        times => format!("It was renewed {}, last {}", count(times, "time"), ago(now, held.renewed_at)),
    };
    format!("{renewed}, and lasts until {until} unless it is renewed.")
}

fn queue(status: &LockStatus) -> String {
    let now = status.now;
    let mut waiters = status.waiters.iter().take(NAMED_WAITERS).map(|waiter| {
        let waited = short(now.since(waiter.since));
        let reason = waiter.metadata.get("reason").map(|reason| format!(": {reason}")).unwrap_or_default();
        format!("{} ({}, for {waited}{reason})", waiter.holder, waiter.mode)
    });
    let Some(next) = waiters.next() else {
        return "No other caller waits for it.".to_owned();
    };
    let more = match status.waiters.len().saturating_sub(NAMED_WAITERS) {
        0 => None,
        more => Some(format!("{more} more")),
    };
    let all: Vec<_> = std::iter::once(format!("{next} is next")).chain(waiters).chain(more).collect();
    format!("In the queue: {}.", all.join(", then "))
}

fn remedies(status: &LockStatus, program: &str) -> Vec<Remedy> {
    let name = shell_word(status.name.as_str());
    let remedy = |to, rest: String| Remedy { to, command: format!("{program} {rest}") };
    let alive: Vec<_> = status.holders.iter().filter(|held| !held.stale).collect();
    if alive.is_empty() {
        let mut remedies = vec![remedy("take it", format!("run {name} -- COMMAND"))];
        if status.is_stale {
            remedies.push(remedy("clear it", "sweep".to_owned()));
        }
        return remedies;
    }
    let mut remedies = vec![
        remedy("wait", format!("locks wait {name} --for free")),
        remedy("queue", format!("run {name} --wait 10m -- COMMAND")),
    ];
    if alive.iter().any(|held| held.status == Status::Active) {
        remedies.push(remedy("ask", format!("locks ask {name} --reason 'TEXT'")));
    }
    for held in alive {
        let token = held.token;
        remedies
            .push(remedy("force", format!("locks release {name} --force --token {token} --reason 'TEXT'")));
    }
    remedies
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::output::fixture;

    fn why(status: &LockStatus) -> String {
        let is_own_lease = |held: &HolderStatus| held.holder.as_str() == "dan";
        Explanation::new(status, None, is_own_lease, "leasehold").text(Style::PLAIN)
    }

    #[test]
    fn a_held_lock_is_explained() {
        insta::assert_snapshot!(why(&fixture::held("deploy/prod")), @r"
        'deploy/prod' is held by ada@web1:4711 since 2024-11-05T14:31:45Z (12s ago), alone, with token 1730817105000000.
        It is for: work of\nada@web1:4711.
        It was renewed 1 time, last 2s ago, and lasts until 2024-11-05T14:32:25Z (in 28s) unless it is renewed.
        bob@ci asked it to stop 1s ago (hotfix); it is notified at once if the store can, else at its next renewal.
        In the queue: bob@ci:12 (exclusive, for 4s) is next, then eve@ci:13 (shared, for 1s).

        What to do:
          wait   leasehold locks wait deploy/prod --for free
          queue  leasehold run deploy/prod --wait 10m -- COMMAND
          force  leasehold locks release deploy/prod --force --token 1730817105000000 --reason 'TEXT'
        ");
    }

    #[test]
    fn a_renewal_after_a_release_request_notifies_the_holder() {
        let mut status = fixture::held("deploy/prod");
        let held = &mut status.holders[0];
        held.renewed_at = held.release_request.as_ref().unwrap().at;
        let text = why(&status);
        assert!(text.contains("(hotfix); it was notified at its last renewal.\n"), "{text}");
    }

    #[test]
    fn several_holders_are_explained_and_the_caller_is_marked() {
        insta::assert_snapshot!(why(&fixture::shared("deploy/prod")), @r"
        'deploy/prod' is held by carol since 2024-11-05T14:31:49Z (8s ago), shared, with token 1730817109000000.
        It is for: work of\ncarol.
        It has not been renewed yet, and lasts until 2024-11-05T14:32:19Z (in 22s) unless it is renewed.
        It is also held by yourself (dan) since 2024-11-05T14:31:50Z (7s ago), shared, with token 1730817110000000.
        It is for: work of\ndan.
        It has not been renewed yet, and lasts until 2024-11-05T14:32:20Z (in 23s) unless it is renewed.
        No other caller waits for it.

        What to do:
          wait   leasehold locks wait deploy/prod --for free
          queue  leasehold run deploy/prod --wait 10m -- COMMAND
          ask    leasehold locks ask deploy/prod --reason 'TEXT'
          force  leasehold locks release deploy/prod --force --token 1730817109000000 --reason 'TEXT'
          force  leasehold locks release deploy/prod --force --token 1730817110000000 --reason 'TEXT'
        ");
    }

    #[test]
    fn a_stale_and_a_free_lock_name_the_commands_to_take_them() {
        insta::assert_snapshot!(why(&fixture::stale("it's mine")), @r"
        'it's mine' was held by ada@web1:4711 since 2024-11-05T14:31:45Z (33s ago), alone, with token 1730817105000000.
        It is for: work of\nada@web1:4711.
        Its lease expired at 2024-11-05T14:32:15Z (3s ago): the next acquire, or a sweep, frees it.
        No other caller waits for it.

        What to do:
          take it   leasehold run 'it'\''s mine' -- COMMAND
          clear it  leasehold sweep
        ");
        insta::assert_snapshot!(why(&fixture::unknown("deploy/prod")), @"
        'deploy/prod' is not held.
        It has no recorded events.
        No other caller waits for it.

        What to do:
          take it  leasehold run deploy/prod -- COMMAND
        ");
    }

    #[test]
    fn a_dead_process_is_reported() {
        let Some(status) = fixture::dead_process("deploy/prod") else { return };
        insta::assert_snapshot!(why(&status), @r"
        'deploy/prod' is held by ada@web1:4711 since 2024-11-05T14:31:45Z (3s ago), alone, with token 1730817105000000.
        It is for: work of\nada@web1:4711.
        Its process has exited: the next acquire, or a sweep, frees it.
        No other caller waits for it.

        What to do:
          take it   leasehold run deploy/prod -- COMMAND
          clear it  leasehold sweep
        ");
    }
}
