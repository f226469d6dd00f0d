//! Times at which the command is asked to stop and is killed. Pure functions: time is an argument.

use std::time::Duration;

use leasehold::BootInstant;
use leasehold::model::format_duration;

/// Maximum time for the release of the locks before the exit.
pub(super) const RELEASE_TIMEOUT: Duration = Duration::from_secs(5);

/// Division of the end of a lease: `… | SIGTERM, kill_after | SIGKILL, margin | the lease ends`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Timing {
    /// Time between `SIGTERM` and `SIGKILL` for the command.
    pub(super) kill_after: Duration,
    /// Time before the end of the lease at which every process must be dead: time for the killing
    /// itself, on a busy machine.
    pub(super) margin: Duration,
    /// Time between the moment at which a renewal is due and the end of the lease.
    pub(super) after_renewal: Duration,
}

impl Timing {
    const MIN_TTL: Duration = Duration::from_secs(1);
    const DEFAULT_KILL_AFTER: Duration = Duration::from_secs(5);
    const MIN_SPARE: Duration = Duration::from_millis(50);
    /// Maximum fraction of the time after a renewal is due that the margin may take on a machine
    /// whose timers fire late.
    const MAX_MARGIN: f64 = 0.6;

    /// Divides the ttl, and checks that the parts fit; the error names the option to change.
    pub(super) fn new(ttl: Duration, kill_after: Option<Duration>, renew_at: f64) -> Result<Self, String> {
        if ttl < Self::MIN_TTL {
            return Err(format!(
                "--ttl {} is too short for a command: must be at least {}",
                format_duration(ttl),
                format_duration(Self::MIN_TTL)
            ));
        }
        if !(renew_at > 0.0 && renew_at < 1.0) {
            return Err(format!(
                "invalid --renew-at {renew_at}: must be a fraction of the ttl between 0 and 1, such as 0.33"
            ));
        }
        let margin = (ttl / 10).clamp(Duration::from_millis(100), Duration::from_secs(1));
        // A command may be asked to stop only if a renewal that was due has failed, and been
        // retried for a while.
        let after_renewal = ttl.mul_f64(1.0 - renew_at);
        let spare = after_renewal.saturating_sub(margin);
        if spare < Self::MIN_SPARE {
            return Err(format!(
                "--renew-at {renew_at} is too late: with --ttl {} it leaves no time to end the command",
                format_duration(ttl)
            ));
        }
        let kill_after = match kill_after {
            None => Self::DEFAULT_KILL_AFTER.min(ttl / 3).min(spare / 2),
            Some(requested) if requested >= ttl / 2 => {
                return Err(format!(
                    "--kill-after {} does not fit: must be less than half of --ttl {}",
                    format_duration(requested),
                    format_duration(ttl)
                ));
            }
            Some(requested) if requested >= spare => {
                return Err(format!(
                    "--kill-after {} does not fit: with --ttl {} and --renew-at {renew_at}, \
                     the command would be ended before the lease is renewed",
                    format_duration(requested),
                    format_duration(ttl)
                ));
            }
            Some(requested) => requested,
        };
        Ok(Self { kill_after, margin, after_renewal })
    }

    /// Returns the timing for timers that fire this late: the margin grows by twice the delay, to
    /// at most three fifths of the time after a renewal is due, and the grace of the command
    /// shrinks where both do not fit.
    pub(super) fn with_delay(self, delay: Duration) -> Self {
        let max = self.after_renewal.mul_f64(Self::MAX_MARGIN).max(self.margin);
        let margin = self.margin.saturating_add(delay.saturating_mul(2)).min(max);
        if margin == self.margin {
            return self;
        }
        let available = self.after_renewal.saturating_sub(margin).saturating_sub(Self::MIN_SPARE);
        Self { margin, kill_after: self.kill_after.min(available), ..self }
    }

    /// Returns the interval at which the delay of timers is measured.
    pub(super) fn probe_interval(self) -> Duration {
        (self.after_renewal / 10).clamp(Duration::from_millis(50), Duration::from_secs(1))
    }

    /// Returns when the command is asked to stop, if the lease is not renewed.
    pub(super) fn term_at(self, valid_until: BootInstant) -> BootInstant {
        before(self.kill_at(valid_until), self.kill_after)
    }

    /// Returns when every process of the command must be killed.
    pub(super) fn kill_at(self, valid_until: BootInstant) -> BootInstant {
        before(valid_until, self.margin)
    }
}

fn before(moment: BootInstant, duration: Duration) -> BootInstant {
    let micros = u64::try_from(duration.as_micros()).unwrap_or(u64::MAX);
    BootInstant::from_micros(moment.as_micros().saturating_sub(micros))
}

/// State of ending a command, in a process that may have to end it.
#[derive(Debug, Clone, Copy)]
pub(super) struct KillSchedule {
    /// Timing for timers that fire on time.
    planned: Timing,
    /// Timing for the delay of timers observed on this machine.
    timing: Timing,
    /// Time to leave it to the other process to ask the command to stop.
    defer: Duration,
    /// Time at which the command will be killed; set once it has been asked to stop.
    kill_at: Option<BootInstant>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Due {
    /// No action until then.
    Nothing(BootInstant),
    /// Ask the command to stop, then call [`KillSchedule::request_stop`].
    Term,
    Kill,
}

impl KillSchedule {
    pub(super) fn new(timing: Timing, defer: Duration) -> Self {
        Self { planned: timing, timing, defer, kill_at: None }
    }

    /// Uses the timing for timers that fire this late from now on.
    pub(super) fn set_timer_delay(&mut self, delay: Duration) {
        self.timing = self.planned.with_delay(delay);
    }

    pub(super) fn due(&self, now: BootInstant, valid_until: BootInstant) -> Due {
        // A command that was asked to stop must end: a late renewal does not postpone its kill, but
        // a change of the expiry time may bring the kill forward.
        let kill_at = self.timing.kill_at(valid_until);
        let kill_at = self.kill_at.map_or(kill_at, |planned| planned.min(kill_at));
        let term_at = self.timing.term_at(valid_until).plus(self.defer);
        match self.kill_at {
            _ if now >= kill_at => Due::Kill,
            None if now >= term_at => Due::Term,
            None => Due::Nothing(term_at.min(kill_at)),
            Some(_) => Due::Nothing(kill_at),
        }
    }

    /// Records that the command has been asked to stop now: it has `kill_after`, but never longer
    /// than its lease.
    pub(super) fn request_stop(&mut self, now: BootInstant, valid_until: BootInstant) {
        let planned = now.plus(self.timing.kill_after).plus(self.defer);
        let kill_at = planned.min(self.timing.kill_at(valid_until));
        self.kill_at.get_or_insert(kill_at);
    }

    pub(super) fn kill_now(&mut self) {
        self.kill_at = Some(BootInstant::from_micros(0));
    }

    /// Whether the command has been asked to stop.
    pub(super) fn is_ending(&self) -> bool {
        self.kill_at.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn secs(secs: f64) -> Duration {
        Duration::from_secs_f64(secs)
    }

    fn at(millis: u64) -> BootInstant {
        BootInstant::from_micros(millis * 1000)
    }

    #[test]
    fn the_parts_fit_into_any_ttl() {
        for ttl in [1.0, 1.5, 2.0, 3.0, 10.0, 30.0, 3600.0] {
            for renew_at in [0.1, 0.33, 0.5, 0.8] {
                let ttl = secs(ttl);
                let timing = Timing::new(ttl, None, renew_at).unwrap();
                let ending = timing.kill_after + timing.margin;
                assert!(ttl.mul_f64(renew_at) + ending < ttl, "{ttl:?} {renew_at} {timing:?}");
                assert!(timing.margin >= Duration::from_millis(100));
                assert!(timing.kill_after <= ttl / 3 && timing.kill_after <= secs(5.0));
            }
        }
        let default = Timing::new(secs(30.0), None, 0.33).unwrap();
        assert_eq!((default.kill_after, default.margin), (secs(5.0), secs(1.0)));
    }

    #[test]
    fn durations_that_do_not_fit_name_the_option_to_change() {
        let error = |ttl, kill_after, renew_at| Timing::new(secs(ttl), kill_after, renew_at).unwrap_err();
        assert!(error(10.0, Some(secs(5.0)), 0.33).contains("--kill-after 5s does not fit"));
        assert!(error(10.0, Some(secs(2.0)), 0.8).contains("--renew-at 0.8"));
        assert!(error(10.0, None, 0.9).contains("--renew-at 0.9 is too late"));
        assert!(error(0.999, None, 0.33).contains("--ttl 999ms"));
        for renew_at in [0.0, 1.0, -1.0, f64::NAN, f64::INFINITY] {
            assert!(error(10.0, None, renew_at).contains("--renew-at"));
        }
        assert!(Timing::new(secs(10.0), Some(secs(4.9)), 0.33).is_ok());
        assert!(Timing::new(secs(10.0), Some(Duration::ZERO), 0.33).is_ok());
    }

    #[test]
    fn a_lease_that_is_not_renewed_ends_in_steps() {
        let timing = Timing::new(secs(10.0), Some(secs(2.0)), 0.33).unwrap();
        let mut schedule = KillSchedule::new(timing, Duration::ZERO);
        let until = at(20_000);
        assert_eq!(schedule.due(at(10_000), until), Due::Nothing(at(17_000)));
        assert_eq!(schedule.due(at(17_000), until), Due::Term);
        schedule.request_stop(at(17_000), until);
        assert_eq!(schedule.due(at(17_000), until), Due::Nothing(at(19_000)));
        assert_eq!(schedule.due(at(19_000), until), Due::Kill);
        assert_eq!(schedule.due(at(99_000), until), Due::Kill);
    }

    #[test]
    fn a_renewal_moves_the_end_but_not_of_a_command_that_is_ending() {
        let timing = Timing::new(secs(10.0), Some(secs(2.0)), 0.33).unwrap();
        let mut schedule = KillSchedule::new(timing, Duration::ZERO);
        assert_eq!(schedule.due(at(18_000), at(25_000)), Due::Nothing(at(22_000)));
        schedule.request_stop(at(18_000), at(25_000));
        assert_eq!(schedule.due(at(18_000), at(35_000)), Due::Nothing(at(20_000)));
        assert_eq!(schedule.due(at(18_000), at(19_500)), Due::Nothing(at(18_500)));
        schedule.kill_now();
        assert_eq!(schedule.due(at(18_000), at(35_000)), Due::Kill);
    }

    #[test]
    fn a_deferring_process_acts_later_but_never_too_late() {
        let timing = Timing::new(secs(10.0), Some(secs(2.0)), 0.33).unwrap();
        let mut schedule = KillSchedule::new(timing, Duration::from_millis(50));
        assert_eq!(schedule.due(at(10_000), at(20_000)), Due::Nothing(at(17_050)));
        schedule.request_stop(at(15_000), at(20_000));
        assert_eq!(schedule.due(at(15_000), at(20_000)), Due::Nothing(at(17_050)));
        let mut late = KillSchedule::new(timing, Duration::from_millis(50));
        late.request_stop(at(18_000), at(20_000));
        assert_eq!(late.due(at(18_000), at(20_000)), Due::Nothing(at(19_000)));
    }

    #[test]
    fn late_timers_widen_the_margin_and_never_beyond_the_next_renewal() {
        for ttl in [1.0, 3.0, 30.0, 3600.0] {
            for renew_at in [0.1, 0.33, 0.8] {
                let timing = Timing::new(secs(ttl), None, renew_at).unwrap();
                assert_eq!(timing.with_delay(Duration::ZERO), timing);
                let mut last = timing.margin;
                for delay in [0.001, 0.05, 0.3, 2.0, 1e6] {
                    let late = timing.with_delay(secs(delay));
                    assert!(late.margin >= last && late.kill_after <= timing.kill_after);
                    let ending = late.kill_after + late.margin;
                    assert!(secs(ttl).mul_f64(renew_at) + ending < secs(ttl), "{ttl} {renew_at} {late:?}");
                    last = late.margin;
                }
            }
        }
        let timing = Timing::new(secs(1.0), None, 0.33).unwrap();
        assert_eq!(timing.with_delay(secs(0.1)).margin, secs(0.3));
        assert!(timing.with_delay(secs(0.3)).margin > secs(0.4), "bounded by three fifths of 0.67 s");
        let mut schedule = KillSchedule::new(timing, Duration::ZERO);
        assert_eq!(schedule.due(at(9_800), at(10_000)), Due::Term);
        schedule.set_timer_delay(secs(0.1));
        assert_eq!(schedule.due(at(9_700), at(10_000)), Due::Kill);
    }

    #[test]
    fn after_a_long_pause_the_kill_is_due_at_once() {
        let timing = Timing::new(secs(10.0), None, 0.33).unwrap();
        let schedule = KillSchedule::new(timing, Duration::from_millis(50));
        assert_eq!(schedule.due(at(60_000), at(20_000)), Due::Kill);
    }
}
