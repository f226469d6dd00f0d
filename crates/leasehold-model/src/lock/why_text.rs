//! Sentences and commands for the explanation of a lock.

use std::fmt;
use std::time::Duration;

use super::why::{LockReason, LockRemedy, ReleaseCause, WaitCause};
use crate::shell::{lock_command, run_command};
use crate::{EventKind, LockName, Mode, Timestamp, format_duration};

impl LockReason {
    /// Returns the reason as a sentence, with times in UTC and relative to `now`.
    pub fn text(&self, now: Timestamp) -> String {
        self.text_with(TimeWriter { when: &|at| utc(at, now), elapsed: &|since| short(now.since(since)) })
    }

    /// Returns the reason as a sentence, with times as `times` writes them.
    pub fn text_with(&self, times: TimeWriter<'_>) -> String {
        Sentence { reason: self, times }.to_string()
    }
}

/// Writes the times of a sentence.
#[derive(Clone, Copy)]
#[expect(missing_debug_implementations, reason = "functions have no representation")]
pub struct TimeWriter<'a> {
    /// Writes a point of time, with its distance from now.
    pub when: &'a dyn Fn(Timestamp) -> String,
    /// Writes the time that has passed since a point of time.
    pub elapsed: &'a dyn Fn(Timestamp) -> String,
}

/// Returns a time in UTC with its distance from `now`.
fn utc(at: Timestamp, now: Timestamp) -> String {
    if at > now {
        format!("{at} (in {})", short(at.since(now)))
    } else {
        format!("{at} ({} ago)", short(now.since(at)))
    }
}

/// Formats a duration to the second, unless it is shorter than that.
fn short(duration: Duration) -> String {
    let whole = Duration::from_secs(duration.as_secs());
    format_duration(if whole.is_zero() { duration } else { whole })
}

/// Reason as a sentence.
struct Sentence<'a> {
    reason: &'a LockReason,
    times: TimeWriter<'a>,
}

impl Sentence<'_> {
    fn when(&self, at: Timestamp) -> String {
        (self.times.when)(at)
    }

    fn ago(&self, at: Timestamp) -> String {
        format!("{} ago", (self.times.elapsed)(at))
    }
}

impl fmt::Display for Sentence<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.reason {
            LockReason::Held { .. } => self.held(f),
            LockReason::Purpose { .. } => self.purpose(f),
            LockReason::Renewals { .. } => self.renewals(f),
            LockReason::Expired { at, .. } => write!(f, "Its lease expired at {}.", self.when(*at)),
            LockReason::ProcessExited { .. } => f.write_str("Its process has exited."),
            LockReason::Retained { until, .. } => {
                write!(
                    f,
                    "Its work is done; the lease only blocks other holders until {}.",
                    self.when(*until)
                )
            }
            LockReason::ReleaseRequested { request, notified } => {
                let reason = request.reason.as_ref().map(|reason| format!(" ({reason})")).unwrap_or_default();
                let learns = if *notified {
                    "it was notified at its last renewal"
                } else {
                    "it is notified at once if the store can, else at its next renewal"
                };
                write!(f, "{} asked it to stop {}{reason}; {learns}.", request.by, self.ago(request.at))
            }
            LockReason::NotHeld { lock } => write!(f, "'{lock}' is not held."),
            LockReason::Ended { .. } => self.ended(f),
            LockReason::EndUnknown => f.write_str("Its history no longer says how its last lease ended."),
            LockReason::NeverHeld => f.write_str("It was never held, or was forgotten since."),
            LockReason::Waits { .. } => self.waits(f),
            LockReason::NoWaiter => f.write_str("No other caller waits for it."),
            LockReason::FreedBy { holders, ways } => self.freed_by(f, *holders, ways),
        }
    }
}

impl Sentence<'_> {
    fn held(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let LockReason::Held { lock, holder, token, mode, slots, since, over, also, own, .. } = self.reason
        else {
            return Ok(());
        };
        let verb = if *over { "was" } else { "is" };
        if *also {
            write!(f, "It {verb} also held by ")?;
        } else {
            write!(f, "'{lock}' {verb} held by ")?;
        }
        if *own {
            write!(f, "yourself ({holder})")?;
        } else {
            write!(f, "{holder}")?;
        }
        let mode = match mode {
            Mode::Shared => "shared".to_owned(),
            Mode::Exclusive if *slots > 1 => format!("in one of {slots} slots"),
            Mode::Exclusive => "alone".to_owned(),
        };
        write!(f, " since {}, {mode}, with token {token}.", self.when(*since))
    }

    fn purpose(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let LockReason::Purpose { command, user, host, pid, reason } = self.reason else { return Ok(()) };
        let place = match (user, host, pid) {
            (Some(user), Some(host), Some(pid)) => format!(" (user {user} on {host}, process {pid})"),
            (Some(user), Some(host), None) => format!(" (user {user} on {host})"),
            _ => String::new(),
        };
        match (command, reason) {
            (Some(command), Some(reason)) => {
                write!(f, "It is for: {command}{place}. The reason given: {reason}.")
            }
            (Some(command), None) => write!(f, "It is for: {command}{place}."),
            (None, Some(reason)) => write!(f, "The reason given: {reason}."),
            (None, None) => Ok(()),
        }
    }

    fn renewals(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let LockReason::Renewals { times, last, until, late, .. } = self.reason else { return Ok(()) };
        match times {
            0 => f.write_str("It has not been renewed yet")?,
            1 => write!(f, "It was renewed 1 time, last {}", self.ago(*last))?,
            times => write!(f, "It was renewed {times} times, last {}", self.ago(*last))?,
        }
        if until.is_endless() {
            return f.write_str(", and it does not expire.");
        }
        let until = self.when(*until);
        if *late {
            write!(f, ", and is late: its holder may be dead or cut off. It lasts until {until}.")
        } else {
            write!(f, ", and lasts until {until} unless it is renewed.")
        }
    }

    fn ended(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let LockReason::Ended { kind, holder, at, by, reason, .. } = self.reason else { return Ok(()) };
        let when = self.when(*at);
        let actor = by.as_ref().map_or("An operator", |by| by.as_str());
        match kind {
            EventKind::Released => write!(f, "{holder} released it at {when}")?,
            EventKind::Forced => write!(f, "{actor} took it from {holder} by force at {when}")?,
            EventKind::Stolen => {
                let actor = by.as_ref().map_or("Another caller", |by| by.as_str());
                write!(f, "{actor} took it over from {holder}, which did not renew it, at {when}")?;
            }
            _ => write!(f, "The lease of {holder} expired at {when}")?,
        }
        match reason {
            Some(reason) => write!(f, ": {reason}."),
            None => f.write_str("."),
        }
    }

    fn waits(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let LockReason::Waits { position, holder, mode, slots, priority, since, reason, behind, .. } =
            self.reason
        else {
            return Ok(());
        };
        match position {
            1 => write!(f, "{holder} is next in the queue ({mode}")?,
            position => write!(f, "{holder} is number {position} in the queue ({mode}")?,
        }
        if *slots > 1 {
            write!(f, ", in one of {slots} slots")?;
        }
        if *priority != 0 {
            write!(f, ", priority {priority}")?;
        }
        write!(f, ", for {}", (self.times.elapsed)(*since))?;
        if let Some(reason) = reason {
            write!(f, ": {reason}")?;
        }
        match behind {
            WaitCause::Holders { first, more: 0 } => write!(f, "): it waits for {first}."),
            WaitCause::Holders { first, more: 1 } => write!(f, "): it waits for {first} and 1 other holder."),
            WaitCause::Holders { first, more } => {
                write!(f, "): it waits for {first} and {more} other holders.")
            }
            WaitCause::Waiter(before) => write!(f, "): it waits for {before} before it."),
            WaitCause::Nothing => f.write_str("): the next operation grants it."),
        }
    }

    fn freed_by(&self, f: &mut fmt::Formatter<'_>, holders: usize, ways: &[ReleaseCause]) -> fmt::Result {
        if ways.contains(&ReleaseCause::NextOperation) {
            return f.write_str("The next acquire, or a sweep, frees it.");
        }
        f.write_str("It becomes free ")?;
        for (at, way) in ways.iter().enumerate() {
            if at > 0 {
                f.write_str(if at + 1 == ways.len() { ", or " } else { ", " })?;
            }
            match way {
                ReleaseCause::Release if holders == 1 => f.write_str("when its holder releases it")?,
                ReleaseCause::Release => write!(f, "when its {holders} holders release it")?,
                ReleaseCause::Expiry { at, renewable } => {
                    let unless = if *renewable { " unless renewed" } else { "" };
                    write!(f, "at {}{unless}", self.when(*at))?;
                }
                ReleaseCause::Force | ReleaseCause::NextOperation => f.write_str("by force")?,
            }
        }
        f.write_str(".")
    }
}

impl LockRemedy {
    /// Returns what the command does, in a word or two.
    pub const fn purpose(self) -> &'static str {
        match self {
            Self::Take => "take it",
            Self::Sweep => "clear it",
            Self::Wait => "wait",
            Self::Queue => "queue",
            Self::RequestRelease => "ask",
            Self::Force { .. } => "force",
        }
    }

    /// Returns the command for a shell. `program` is the command line up to the subcommand: the name of
    /// the program, with the options that make it use the store of the lock.
    pub fn command(self, program: &str, lock: &LockName) -> String {
        let about = |command: &str, options: &str| {
            lock_command(&format!("{program} {command}"), lock.as_str(), options)
        };
        match self {
            Self::Take => run_command(program, lock.as_str(), ""),
            Self::Sweep => format!("{program} sweep"),
            Self::Wait => about("locks wait", "--for free"),
            Self::Queue => run_command(program, lock.as_str(), "--wait 10m"),
            Self::RequestRelease => about("locks ask", "--reason 'TEXT'"),
            Self::Force { token } => {
                about("locks release", &format!("--force --token {token} --reason 'TEXT'"))
            }
        }
    }
}
