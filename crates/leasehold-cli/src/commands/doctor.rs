//! `doctor`: checks of the machine and the store, and their report with one line for each.

use std::time::Duration;

use leasehold::model::{Timestamp, format_duration};
use leasehold::store::{Capabilities, HealthCheck, Hosts, ListLocks, this_process};
use leasehold::{BootInstant, Leasehold};
use serde::Serialize;

use crate::cli::DoctorArgs;
use crate::commands::context::{CommandResult, with_code};
use crate::config::{self, StoreChoice};
use crate::exit;
use crate::output::{Failure, Printer, Style, lines, short, visible};
use crate::run::{Contain, SupportedModes};

#[derive(Debug, Serialize)]
struct Check {
    name: &'static str,
    status: CheckStatus,
    detail: String,
    /// Stable name of the problem; `docs/errors.md` describes each.
    #[serde(skip_serializing_if = "Option::is_none")]
    code: Option<&'static str>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    advice: Vec<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum CheckStatus {
    Ok,
    Warning,
    Failed,
}

#[derive(Debug, Serialize)]
struct Report {
    ok: bool,
    checks: Vec<Check>,
}

impl Check {
    fn ok(name: &'static str, detail: impl Into<String>) -> Self {
        Self { name, status: CheckStatus::Ok, detail: detail.into(), code: None, advice: Vec::new() }
    }

    fn warning(name: &'static str, detail: impl Into<String>, hint: &str) -> Self {
        Self { status: CheckStatus::Warning, advice: vec![format!("hint: {hint}")], ..Self::ok(name, detail) }
    }

    fn failed(name: &'static str, failure: &Failure) -> Self {
        Self {
            status: CheckStatus::Failed,
            advice: failure.advice().collect(),
            ..Self::ok(name, failure.message())
        }
    }
}

/// A health issue becomes a warning, not a failure: the store can be used, but its users should
/// know of the issue.
impl From<HealthCheck> for Check {
    fn from(finding: HealthCheck) -> Self {
        match finding.issue {
            None => Self::ok(finding.name, finding.detail),
            Some(issue) => {
                let hint = match issue.code {
                    "DYNAMODB_TTL_OFF" => format!("run: leasehold store init; or {}", issue.hint),
                    _ => issue.hint,
                };
                Self { code: Some(issue.code), ..Self::warning(finding.name, finding.detail, &hint) }
            }
        }
    }
}

impl Report {
    fn new(checks: Vec<Check>) -> Self {
        let ok = checks.iter().all(|check| check.status != CheckStatus::Failed);
        Self { ok, checks }
    }

    fn text(&self, style: Style) -> String {
        let width = self.checks.iter().map(|check| check.name.len()).max().unwrap_or(0);
        lines(self.checks.iter().flat_map(|check| {
            let sign = match check.status {
                CheckStatus::Ok => style.good("✓"),
                CheckStatus::Warning => style.warning("!"),
                CheckStatus::Failed => style.bad("✗"),
            };
            let code = check.code.map(|code| format!(" [{code}]")).unwrap_or_default();
            let first = format!("{sign} {:width$}  {}{code}", check.name, visible(&check.detail));
            let advice = check.advice.iter().map(move |line| format!("  {:width$}  {}", "", visible(line)));
            std::iter::once(first).chain(advice)
        }))
    }
}

/// Maximum difference between the store's clock and the wall clock without a warning.
const MAX_CLOCK_DIFFERENCE: Duration = Duration::from_secs(1);
/// Maximum response time of a store without a warning.
const SLOW: Duration = Duration::from_millis(500);

fn version() -> Check {
    let system = format!("{} {}", std::env::consts::OS, std::env::consts::ARCH);
    // Not named "version": the engine may report its own version.
    Check::ok("leasehold", format!("{}, {system}", env!("CARGO_PKG_VERSION")))
}

fn round_trip(took: Duration) -> Check {
    let millis = took.as_secs_f64() * 1000.0;
    if took < SLOW {
        return Check::ok("round trip", format!("{millis:.2} ms"));
    }
    let hint = "use a ttl of many round trips, or a store that is closer";
    Check::warning("round trip", format!("{millis:.0} ms is slow"), hint)
}

/// Compares the clocks. Leases end by the store's clock alone, so a difference matters only to
/// people who compare times.
fn clock(store: Timestamp, wall: jiff::Timestamp) -> Check {
    let wall = Timestamp::from_micros(u64::try_from(wall.as_microsecond()).unwrap_or(0));
    let (ahead, behind) = (store.since(wall), wall.since(store));
    let apart = ahead.max(behind);
    if apart <= MAX_CLOCK_DIFFERENCE {
        return Check::ok("clock", "the store's clock agrees with this machine's");
    }
    let side = if ahead > behind { "ahead of" } else { "behind" };
    let detail = format!("the store's clock is {} {side} this machine's", short(apart));
    Check::warning("clock", detail, "leases are not affected; only the times that are shown are")
}

fn engine(capabilities: &Capabilities) -> Check {
    let hosts = match capabilities.hosts {
        Hosts::OneProcess => "this process only",
        Hosts::OneMachine => "every process of this machine",
        _ => "many machines",
    };
    let waiting = if capabilities.push_notifications { "are notified, and poll" } else { "poll" };
    let detail = format!(
        "{}, for {hosts}; a ttl of {} or more; waiters {waiting} every {}",
        capabilities.engine,
        capabilities.min_ttl,
        format_duration(capabilities.poll)
    );
    if capabilities.persistent {
        return Check::ok("engine", detail);
    }
    let hint = "use it for tests only; sqlite: is a persistent store";
    Check::warning("engine", format!("{detail}; loses everything when this process exits"), hint)
}

fn processes(capabilities: &Capabilities) -> Check {
    if capabilities.detects_dead_processes && this_process().is_some() {
        return Check::ok("processes", "a lock whose process has died is free at once");
    }
    let detail = "a lock whose process has died is free when its ttl is over";
    match capabilities.hosts {
        Hosts::OneMachine => {
            Check::warning("processes", detail, "this system does not provide the start times of processes")
        }
        _ => Check::ok("processes", detail),
    }
}

const CONTAINMENT: &str = "containment";

fn containment(supported: &SupportedModes) -> Check {
    match config::containment(None) {
        Ok(wanted) => describe(supported, wanted),
        Err(failure) => {
            Check::warning(CONTAINMENT, failure.message(), "no command will run until this is fixed")
        }
    }
}

fn describe(supported: &SupportedModes, wanted: Contain) -> Check {
    let pidns = match &supported.pidns {
        Ok(()) => "--contain pidns is available".to_owned(),
        Err(error) => format!("--contain pidns is not available ({error})"),
    };
    match supported.mode(wanted) {
        Ok(Contain::Pidns) => Check::ok(CONTAINMENT, "pidns: each command has a PID namespace of its own"),
        Ok(Contain::Cgroup) => {
            let base = supported.cgroup.as_ref().map(|base| base.display().to_string()).unwrap_or_default();
            Check::ok(
                CONTAINMENT,
                format!("cgroup: each command has a cgroup of its own below {base}; {pidns}"),
            )
        }
        Ok(_) => {
            let cgroup = match &supported.cgroup {
                Ok(_) => "--contain cgroup is available".to_owned(),
                Err(error) => format!("no cgroup can be created ({error})"),
            };
            Check::ok(CONTAINMENT, format!("none: commands are found by their parents; {cgroup}; {pidns}"))
        }
        Err(error) => {
            let message = format!("{} is configured but not available here: {error}", wanted.name());
            Check::warning(CONTAINMENT, message, "no command will run; set contain to auto")
        }
    }
}

#[cfg(feature = "torture")]
const RACE: &str = "race";

/// Reports the race of clients for a lock.
#[cfg(feature = "torture")]
fn race(race: &leasehold_torture::Race) -> Check {
    let leasehold_torture::Race { clients, rounds, failed, violations } = race;
    let detail = format!("{clients} clients, {rounds} times");
    match (violations.as_slice(), failed) {
        ([], 0) => Check::ok(RACE, format!("{detail}: exactly one is granted the lock each time")),
        ([], failed) => {
            let others =
                if *failed as usize == clients * *rounds as usize { "" } else { ", the others were correct" };
            let detail = format!("{detail}: {failed} requests had no clear outcome{others}");
            Check::warning(RACE, detail, "try again when the store responds to all requests")
        }
        ([first, more @ ..], _) => Check {
            status: CheckStatus::Failed,
            code: Some("STORE_NOT_EXCLUSIVE"),
            advice: vec!["hint: do not use this store for locks: it ignores conditions".to_owned()],
            ..Check::ok(RACE, format!("{detail}: {first}, and {} other violations", more.len()))
        },
    }
}

pub(in crate::commands) async fn doctor(
    args: &DoctorArgs,
    store: Result<StoreChoice, Failure>,
    supported: SupportedModes,
    printer: Printer,
) -> CommandResult {
    let mut checks = vec![version(), containment(&supported)];
    let code = match check_health(args, store, &mut checks).await {
        Ok(()) if checks.iter().any(|check| check.status == CheckStatus::Failed) => exit::FAILURE,
        Ok(()) => exit::SUCCESS,
        Err(failure) => {
            checks.push(Check::failed("store", &failure));
            failure.exit
        }
    };
    let report = Report::new(checks);
    with_code(printer.result(&report, |style| report.text(style)), code)
}

async fn check_health(
    args: &DoctorArgs,
    store: Result<StoreChoice, Failure>,
    found: &mut Vec<Check>,
) -> Result<(), Failure> {
    let store = store?;
    found.push(Check::ok("store", format!("{} ({})", store.redacted(), store.origin)));
    let leasehold = Leasehold::connect(&store.url).await?;
    found.push(Check::ok("reachable", format!("opened {}", leasehold.url())));
    found.push(round_trip(measure_round_trip(&leasehold).await?));
    found.push(clock(leasehold.now().await?, jiff::Timestamp::now()));
    found.push(engine(&leasehold.capabilities()));
    found.extend(leasehold.check_health().await?.into_iter().map(Check::from));
    found.push(processes(&leasehold.capabilities()));
    #[cfg(feature = "torture")]
    if args.race {
        drop(leasehold);
        let opened = leasehold_torture::race(async || Leasehold::connect(&store.url).await).await;
        found.push(race(&opened.map_err(super::torture::failure)?));
    }
    #[cfg(not(feature = "torture"))]
    let DoctorArgs {} = args;
    Ok(())
}

/// Measures the duration of a read. The first response does not count: it may have to wait for the
/// store to open.
async fn measure_round_trip(leasehold: &Leasehold) -> Result<Duration, Failure> {
    let one = ListLocks::default().limit(1);
    leasehold.locks().list(&one).await?;
    let sent = BootInstant::now();
    leasehold.locks().list(&one).await?;
    Ok(BootInstant::now().after(sent))
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;

    #[test]
    fn each_check_has_a_sign_and_its_advice() {
        let failure = Failure::config("it is no database").hint("name another file");
        let report = Report::new(vec![
            Check::ok("version", "1"),
            Check::warning("clock", "it is behind", "never mind"),
            HealthCheck::issue("permissions", "others can read it", "STORE_OPEN_TO_OTHERS", "chmod 600 it")
                .into(),
            Check::failed("store", &failure),
        ]);
        insta::assert_snapshot!(report.text(Style::PLAIN), @"
        ✓ version      1
        ! clock        it is behind
                       hint: never mind
        ! permissions  others can read it [STORE_OPEN_TO_OTHERS]
                       hint: chmod 600 it
        ✗ store        it is no database
                       hint: name another file
        ");
        assert!(!report.ok);
    }

    #[cfg(feature = "torture")]
    #[test]
    fn a_race_with_two_winners_fails() {
        let result = |failed, violations: &[&str]| {
            let violations = violations.iter().copied().map(String::from).collect();
            text(&race(&leasehold_torture::Race { clients: 16, rounds: 3, failed, violations }))
        };
        insta::assert_snapshot!(result(0, &[]), @r#"{"name":"race","status":"ok","detail":"16 clients, 3 times: exactly one is granted the lock each time"}"#);
        let unclear = result(2, &[]);
        assert!(
            unclear.contains("warning") && unclear.contains("2 requests had no clear outcome"),
            "{unclear}"
        );
        let broken = result(2, &["2 clients are granted the lock at once in round 1", "another"]);
        assert!(broken.contains("failed") && broken.contains("STORE_NOT_EXCLUSIVE"), "{broken}");
    }

    fn text(check: &Check) -> String {
        serde_json::to_string(check).unwrap()
    }

    #[test]
    fn a_clock_difference_is_a_warning() {
        let wall = jiff::Timestamp::from_second(100).unwrap();
        let at = |seconds: u64| text(&clock(Timestamp::from_micros(seconds * 1_000_000), wall));
        assert!(at(100).contains("agrees"));
        assert!(at(107).contains("7s ahead of"));
        assert!(at(40).contains("1m behind"));
    }

    #[test]
    fn a_slow_store_is_a_warning() {
        assert!(text(&round_trip(Duration::from_micros(150))).contains("\"0.15 ms\""));
        assert!(text(&round_trip(Duration::from_secs(2))).contains("2000 ms is slow"));
    }

    #[test]
    fn the_used_and_the_available_containment_are_named() {
        let no = || io::Error::from(io::ErrorKind::PermissionDenied);
        let rich = SupportedModes { cgroup: Ok("/sys/fs/cgroup/a".into()), pidns: Ok(()) };
        let poor = SupportedModes { cgroup: Err(no()), pidns: Err(no()) };
        let text = |supported, wanted| {
            let check = serde_json::to_value(describe(supported, wanted)).unwrap();
            check["detail"].as_str().unwrap().to_owned()
        };
        insta::assert_snapshot!(text(&rich, Contain::Auto), @"cgroup: each command has a cgroup of its own below /sys/fs/cgroup/a; --contain pidns is available");
        insta::assert_snapshot!(text(&rich, Contain::None), @"none: commands are found by their parents; --contain cgroup is available; --contain pidns is available");
        insta::assert_snapshot!(text(&rich, Contain::Pidns), @"pidns: each command has a PID namespace of its own");
        insta::assert_snapshot!(text(&poor, Contain::Auto), @"none: commands are found by their parents; no cgroup can be created (permission denied); --contain pidns is not available (permission denied)");
        insta::assert_snapshot!(text(&poor, Contain::Pidns), @"pidns is configured but not available here: permission denied");
    }
}
