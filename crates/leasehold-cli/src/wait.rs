//! Display of a wait on stderr: one live line on a terminal; elsewhere a line when the wait is noticeable, further ones
//! at growing intervals, and one when the holder changes. The display never delays the wait: it reads the store at
//! most once a second, and writes nothing while stderr does not accept output.

use std::io::{self, IsTerminal};
use std::time::Duration;

use leasehold::model::{Conflict, Holder, LockName};
use leasehold::{BootInstant, Leasehold, LockStatus};
use nix::unistd::{getpgrp, tcgetpgrp};
use terminal_size::{Width, terminal_size_of};
use tokio::sync::watch;
use tokio::time::{sleep, timeout};

use crate::output::{Printer, accepts_output, cut_to_width, short, visible, write_if_read};

/// Waiting time after which a wait is shown.
const SHOWN_AFTER: Duration = Duration::from_millis(500);
/// Interval of the live line.
const LIVE_INTERVAL: Duration = Duration::from_secs(1);
/// Interval between the first two lines of a log; each further one is twice as long, up to the maximum.
const FIRST_LOG_INTERVAL: Duration = Duration::from_secs(10);
const MAX_LOG_INTERVAL: Duration = Duration::from_mins(30);
/// Additional time between two readings for each caller in the queue: all of them may be reading.
const PER_WAITER: Duration = Duration::from_millis(20);
/// Minimum time between two looks at whether the display is due.
const MIN_PAUSE: Duration = Duration::from_millis(200);
/// Maximum time for one reading of the store.
const READ_TIMEOUT: Duration = Duration::from_secs(2);

/// State of a wait at one moment.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct WaitState {
    /// Subject of the wait, such as `lock 'deploy'`.
    pub(crate) what: String,
    /// Holder, and identity of its grant: another identity is another grant.
    pub(crate) holder: Option<String>,
    pub(crate) grant: String,
    pub(crate) held_for: Option<Duration>,
    /// Number of further holders.
    pub(crate) others: usize,
    pub(crate) reason: Option<String>,
    /// Position of the caller in the queue, from 1, if it is known.
    pub(crate) position: Option<usize>,
    pub(crate) waiters: usize,
}

impl WaitState {
    /// Returns the state of a lock. `is_own` recognizes the ticket of the caller.
    pub(crate) fn of_lock(
        status: &LockStatus,
        is_own: impl Fn(&leasehold::client::WaiterStatus) -> bool,
    ) -> Self {
        let mut live = status.holders.iter().filter(|held| !held.stale);
        let first = live.next();
        let mut own = (1..).zip(&status.waiters).filter(|(_, waiter)| is_own(waiter));
        let position = match (own.next(), own.next()) {
            (Some((position, _)), None) => Some(position),
            // Several callers have this name.
            _ => None,
        };
        Self {
            what: format!("lock '{}'", status.name),
            holder: first.map(|held| held.holder.to_string()),
            grant: first.map(|held| format!("{} {}", status.name, held.token)).unwrap_or_default(),
            held_for: first.map(|held| status.now.since(held.acquired_at)),
            others: live.count(),
            reason: first.and_then(|held| held.metadata.get("reason")).map(str::to_owned),
            position,
            waiters: status.waiters.len(),
        }
    }

    fn of_conflict(lock: &LockName, conflict: &Conflict) -> Self {
        let first = conflict.holders.first();
        Self {
            what: format!("lock '{lock}'"),
            holder: first.map(|held| held.holder.to_string()),
            grant: first.map(|held| format!("{lock} {}", held.token)).unwrap_or_default(),
            held_for: first.zip(conflict.now).map(|(held, now)| now.since(held.since)),
            others: conflict.holders.len().saturating_sub(1),
            reason: None,
            position: None,
            waiters: usize::try_from(conflict.waiters).unwrap_or_default(),
        }
    }

    /// Returns the holder, since when it has the lock, and why: `ada for 3m12s (nightly backup)`.
    fn held_by(&self) -> Option<String> {
        let holder = self.holder.as_ref()?;
        let others = if self.others > 0 { format!(" and {} more", self.others) } else { String::new() };
        let held_for = self.held_for.map(|time| format!(" for {}", to_second(time))).unwrap_or_default();
        let reason = self.reason.as_ref().map(|reason| format!(" ({reason})")).unwrap_or_default();
        Some(format!("{holder}{others}{held_for}{reason}"))
    }

    fn place(&self) -> Option<String> {
        match (self.position, self.waiters) {
            (Some(position), waiters) => Some(format!("{position} of {waiters} in the queue")),
            (None, 0) => None,
            (None, waiters) => Some(format!("{waiters} in the queue")),
        }
    }

    /// Returns the live line. The parts that change come first: the end may be cut.
    fn live(&self, waited: Duration, changed: bool) -> String {
        let place = match (self.position, self.waiters) {
            (Some(position), waiters) => format!(" ({position} of {waiters})"),
            (None, 0) => String::new(),
            (None, waiters) => format!(" ({waiters} waiting)"),
        };
        let word = if changed { "now held by" } else { "held by" };
        let holder = self.held_by().map(|holder| format!(", {word} {holder}")).unwrap_or_default();
        format!("waiting {} for {}{place}{holder}", to_second(waited), self.what)
    }

    /// Returns the line of a log.
    fn line(&self, waited: Duration, changed: bool) -> String {
        let place = self.place().map(|place| format!("{place}, ")).unwrap_or_default();
        let tail = format!("; {place}waited {}", to_second(waited));
        match self.held_by() {
            Some(holder) if changed => format!("{} is now held by {holder}{tail}", self.what),
            Some(holder) => format!("waiting for {}, held by {holder}{tail}", self.what),
            None => format!("waiting for {}{tail}", self.what),
        }
    }
}

fn to_second(duration: Duration) -> String {
    if duration < Duration::from_secs(1) { "0s".to_owned() } else { short(duration) }
}

/// Function that writes a line of a log.
pub(crate) type WriteLine = Box<dyn Fn(&str) + Send>;

/// Writes lines about a wait.
pub(crate) struct WaitDisplay {
    /// Writes a line of a log; `None` if nothing is shown.
    write_line: Option<WriteLine>,
    /// Whether a live line may be shown now.
    is_live: Box<dyn Fn() -> bool + Send>,
    started: BootInstant,
    /// Time at which the live line is due, and the next line of a log, since the start.
    next_live: Duration,
    next_line: Duration,
    live_interval: Duration,
    line_interval: Duration,
    /// Grant that was shown first, and the newest one.
    first_grant: Option<String>,
    last_grant: Option<String>,
    /// Whether there is a live line on the terminal.
    live_shown: bool,
    shown: bool,
}

impl WaitDisplay {
    pub(crate) fn new(write_line: Option<WriteLine>, is_live: impl Fn() -> bool + Send + 'static) -> Self {
        Self {
            write_line,
            is_live: Box::new(is_live),
            started: BootInstant::now(),
            next_live: SHOWN_AFTER,
            next_line: SHOWN_AFTER,
            live_interval: LIVE_INTERVAL,
            line_interval: FIRST_LOG_INTERVAL,
            first_grant: None,
            last_grant: None,
            live_shown: false,
            shown: false,
        }
    }

    /// Returns the display of a command: messages of the printer, unless stderr is not read.
    pub(crate) fn of_command(printer: Printer) -> Self {
        let shows = !printer.quiet && !printer.json;
        let write = move |line: &str| printer.message_if_read(format_args!("leasehold: {line}"));
        let write: Option<WriteLine> = if shows { Some(Box::new(write)) } else { None };
        Self::new(write, is_own_terminal)
    }

    pub(crate) fn waited(&self) -> Duration {
        BootInstant::now().after(self.started)
    }

    /// Sets the minimum time between two readings of the store for the live line.
    pub(crate) fn min_interval(mut self, interval: Duration) -> Self {
        self.live_interval = self.live_interval.max(interval);
        self
    }

    /// Returns the time until the display is due.
    pub(crate) fn due_in(&self) -> Duration {
        let next = match &self.write_line {
            None => MAX_LOG_INTERVAL,
            Some(_) if (self.is_live)() => self.next_live,
            Some(_) => self.next_line,
        };
        next.saturating_sub(self.waited())
    }

    pub(crate) fn is_due(&self) -> bool {
        self.write_line.is_some() && self.due_in().is_zero()
    }

    /// Whether the grant differs from the one that was shown last: then it is shown before the next line is due.
    pub(crate) fn is_news(&self, grant: &str) -> bool {
        self.shown && self.last_grant.as_deref() != Some(grant)
    }

    /// Shows the state, if the display is due or the holder has changed.
    pub(crate) fn show(&mut self, state: &WaitState) {
        let waited = self.waited();
        if self.write_line.is_none() || waited < SHOWN_AFTER || !accepts_output() {
            return;
        }
        let news = self.is_news(&state.grant);
        let changed = self.first_grant.get_or_insert_with(|| state.grant.clone()) != &state.grant;
        if (self.is_live)() {
            self.write_live(&state.live(waited, changed));
            let waiters = u32::try_from(state.waiters).unwrap_or(u32::MAX);
            // A job that goes to the background does not write a line at once.
            self.next_line = waited + self.line_interval;
            self.next_live = waited + self.live_interval.saturating_add(PER_WAITER.saturating_mul(waiters));
        } else if news || waited >= self.next_line {
            self.clear();
            if let Some(write_line) = &self.write_line {
                write_line(&state.line(waited, news));
            }
            self.next_line = waited + self.line_interval;
            self.line_interval = (self.line_interval * 2).min(MAX_LOG_INTERVAL);
        }
        self.last_grant = Some(state.grant.clone());
        self.shown = true;
    }

    /// Replaces the live line.
    pub(crate) fn write_live(&mut self, text: &str) {
        let width = match terminal_size_of(io::stderr()) {
            Some((Width(width), _)) if width > 1 => usize::from(width) - 1,
            _ => 79,
        };
        let line = cut_to_width(&visible(&format!("leasehold: {text}")), width);
        write_if_read(format!("\r\x1b[K{line}").as_bytes());
        self.live_shown = true;
    }

    /// Removes the live line.
    pub(crate) fn clear(&mut self) {
        if std::mem::take(&mut self.live_shown) {
            write_if_read(b"\r\x1b[K");
        }
    }

    /// Ends the display: if the wait was shown, reports its end and how long it took.
    pub(crate) fn finish(mut self, end: &str) {
        self.clear();
        if let Some(write_line) = self.write_line.as_ref().filter(|_| self.shown && accepts_output()) {
            write_line(&format!("{end} after {}", to_second(self.waited())));
        }
    }
}

impl Drop for WaitDisplay {
    fn drop(&mut self) {
        self.clear();
    }
}

/// Whether stderr is a terminal that this process may draw on: one in the background must not disturb the
/// prompt of the shell.
pub(crate) fn is_own_terminal() -> bool {
    can_draw() && tcgetpgrp(io::stderr()).is_ok_and(|group| group == getpgrp())
}

/// Whether stderr is a terminal that understands control sequences.
pub(crate) fn can_draw() -> bool {
    io::stderr().is_terminal() && std::env::var_os("TERM").is_none_or(|term| term != "dumb")
}

/// Lock that is waited for, and its conflict.
pub(crate) type Waiting = watch::Receiver<Option<(LockName, Conflict)>>;

/// Own ticket of a caller, as it appears in the queue.
pub(crate) struct OwnTicket {
    pub(crate) holder: Holder,
    /// Process id in the metadata, if the caller has put it there.
    pub(crate) pid: Option<String>,
}

impl OwnTicket {
    fn is(&self, waiter: &leasehold::client::WaiterStatus) -> bool {
        let pid = self.pid.as_deref();
        waiter.holder == self.holder && pid.is_none_or(|pid| waiter.metadata.get("pid") == Some(pid))
    }
}

/// Shows the wait for a lock. Never returns.
pub(crate) async fn report_lock_wait(
    leasehold: &Leasehold,
    mut waiting: Waiting,
    own: &OwnTicket,
    display: &mut WaitDisplay,
) {
    loop {
        if let Some((lock, conflict)) = waiting.borrow_and_update().clone() {
            let held = WaitState::of_conflict(&lock, &conflict);
            if display.is_due() || held.holder.is_some() && display.is_news(&held.grant) {
                // The wait itself reports errors of the store.
                let read = timeout(READ_TIMEOUT, leasehold.locks().status(&lock)).await;
                let state = match read {
                    Ok(Ok(status)) => WaitState::of_lock(&status, |waiter| own.is(waiter)),
                    _ => held,
                };
                // Without a holder the lock is being handed over.
                if state.holder.is_some() {
                    display.show(&state);
                }
            }
        }
        tokio::select! {
            () = sleep(display.due_in().max(MIN_PAUSE)) => {}
            changed = waiting.changed() => if changed.is_err() {
                return std::future::pending().await;
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn state() -> WaitState {
        WaitState {
            what: "lock 'deploy'".to_owned(),
            holder: Some("ada@web1:4711".to_owned()),
            grant: "1".to_owned(),
            held_for: Some(Duration::from_secs(192)),
            reason: Some("nightly backup".to_owned()),
            position: Some(2),
            waiters: 3,
            ..WaitState::default()
        }
    }

    #[test]
    fn a_wait_names_the_position_the_holder_and_its_reason() {
        let (state, waited) = (state(), Duration::from_millis(12_400));
        assert_eq!(
            state.live(waited, false),
            "waiting 12s for lock 'deploy' (2 of 3), held by ada@web1:4711 for 3m12s (nightly backup)"
        );
        assert_eq!(
            state.line(waited, false),
            "waiting for lock 'deploy', held by ada@web1:4711 for 3m12s (nightly backup); 2 of 3 in the queue, waited 12s"
        );
        assert_eq!(
            state.line(waited, true),
            "lock 'deploy' is now held by ada@web1:4711 for 3m12s (nightly backup); 2 of 3 in the queue, waited 12s"
        );
        let bare = WaitState { position: None, waiters: 0, reason: None, others: 2, held_for: None, ..state };
        assert_eq!(
            bare.line(Duration::from_millis(600), false),
            "waiting for lock 'deploy', held by ada@web1:4711 and 2 more; waited 0s"
        );
    }
}
