//! Timeline of a lock: one bar per lease of the last 24 h, as SVG.

use std::collections::BTreeMap;
use std::time::Duration;

use leasehold::LockStatus;
use leasehold::client::EventView;
use leasehold::model::{EventKind, Timestamp};
use maud::{Markup, html};

use crate::dashboard::load::TIMELINE;
use crate::dashboard::pages::parts::{format_age, name};

/// Width of the drawing in its own units.
const WIDTH: f64 = 1000.0;
const LANE_HEIGHT: f64 = 22.0;
/// Maximum number of lanes for leases that overlap.
const MAX_LANES: usize = 6;
/// Number of colours for holders; the style sheet defines them.
const COLOURS: u64 = 6;
/// Maximum number of holders in the legend.
const MAX_LEGEND: usize = 8;

/// Lease in the timeline.
#[derive(Debug, Clone, PartialEq)]
struct Bar {
    holder: String,
    token: u64,
    from: Timestamp,
    to: Timestamp,
    /// How the lease ended; `None` while it is held.
    end: Option<EventKind>,
}

/// Returns the timeline of the leases in these events, newest first, and of the current holders.
pub(in crate::dashboard) fn timeline(status: &LockStatus, events: &[EventView], now: Timestamp) -> Markup {
    let start = now.minus(TIMELINE);
    let bars = bars(status, events, now, start);
    let lanes = lanes(&bars);
    let count = lanes.iter().max().map_or(1, |lane| lane + 1);
    #[expect(clippy::cast_precision_loss, reason = "at most MAX_LANES")]
    let height = count as f64 * LANE_HEIGHT;
    let held = held_time(&bars);
    let share = held.as_secs_f64() / TIMELINE.as_secs_f64() * 100.0;
    let leases = bars.len();
    html! {
        figure.timeline {
            figcaption {
                "Last 24 h: " (leases) @if leases == 1 { " lease" } @else { " leases" } ", held "
                (format!("{share:.1} %")) " of the time"
            }
            svg viewBox=(format!("0 0 {WIDTH} {height}")) preserveAspectRatio="none" height=(height) role="img"
                aria-label=(format!("{leases} leases in the last 24 hours; the table of events below lists them")) {
                rect.free x="0" y="0" width=(WIDTH) height=(height) {}
                @for hour in 1..8 {
                    @let x = position(start.plus_micros(hour * 3 * 3_600_000_000), start);
                    line.grid x1=(x) x2=(x) y1="0" y2=(height) {}
                }
                @for (bar, lane) in bars.iter().zip(&lanes) { (draw(bar, *lane, start)) }
            }
            div.axis aria-hidden="true" { span { "24 h ago" } span { "18 h" } span { "12 h" } span { "6 h" } span { "now" } }
            (legend(&bars))
        }
    }
}

fn draw(bar: &Bar, lane: usize, start: Timestamp) -> Markup {
    let (x, end) = (position(bar.from, start), position(bar.to, start));
    #[expect(clippy::cast_precision_loss, reason = "at most MAX_LANES")]
    let y = lane as f64 * LANE_HEIGHT + 2.0;
    let (height, width) = (LANE_HEIGHT - 4.0, (end - x).max(1.5));
    let text = match bar.end {
        Some(kind) => format!("{kind} after {}", format_age(bar.to.since(bar.from))),
        None => "held now".to_owned(),
    };
    let class = if bar.end.is_none() { "bar open" } else { "bar" };
    html! {
        rect class=(class) data-colour=(colour(&bar.holder)) x=(format!("{x:.2}")) y=(y) width=(format!("{width:.2}"))
            height=(height) { title { (bar.holder) ", token " (bar.token) ": " (text) } }
        @if matches!(bar.end, Some(EventKind::Expired | EventKind::Stolen | EventKind::Forced)) {
            rect.mark data-end=(bar.end.map(|kind| kind.to_string()).unwrap_or_default())
                x=(format!("{:.2}", end - 2.0)) y=(y - 2.0) width="4" height=(height + 4.0) {}
        }
    }
}

fn legend(bars: &[Bar]) -> Markup {
    let mut holders: BTreeMap<&str, Duration> = BTreeMap::new();
    for bar in bars {
        *holders.entry(&bar.holder).or_default() += bar.to.since(bar.from);
    }
    let mut holders: Vec<_> = holders.into_iter().collect();
    holders.sort_by_key(|(_, held)| std::cmp::Reverse(*held));
    let others = holders.len().saturating_sub(MAX_LEGEND);
    let ended = |kind| bars.iter().any(|bar| bar.end == Some(kind));
    html! {
        ul.legend {
            @for (holder, held) in holders.iter().take(MAX_LEGEND) {
                li { span.swatch data-colour=(colour(holder)) {} (name(holder)) " " span.quiet { (format_age(*held)) } }
            }
            @if others > 0 { li.quiet { (others) " more" } }
            @for (kind, label) in [(EventKind::Expired, "expired"), (EventKind::Stolen, "stolen"), (EventKind::Forced, "forced")] {
                @if ended(kind) { li { span.swatch.end data-end=(label) {} (label) } }
            }
        }
    }
}

/// Returns the leases, oldest first. The event at the end of a lease tells how long it was held.
fn bars(status: &LockStatus, events: &[EventView], now: Timestamp, start: Timestamp) -> Vec<Bar> {
    let ended = events.iter().filter_map(|event| {
        let ends = [EventKind::Released, EventKind::Expired, EventKind::Stolen, EventKind::Forced];
        ends.contains(&event.kind).then(|| Bar {
            holder: event.holder.to_string(),
            token: event.token.get(),
            from: event.at.minus(Duration::from_secs_f64(event.after_seconds.max(0.0))),
            to: event.at,
            end: Some(event.kind),
        })
    });
    let held = status.holders.iter().map(|held| Bar {
        holder: held.holder.to_string(),
        token: held.token.get(),
        from: held.acquired_at,
        to: if held.stale { held.expires_at.min(now) } else { now },
        end: None,
    });
    let mut bars: Vec<Bar> = ended.chain(held).filter(|bar| bar.to > start).collect();
    for bar in &mut bars {
        bar.from = bar.from.max(start);
    }
    bars.sort_by_key(|bar| (bar.from, bar.token));
    bars
}

/// Returns the lane of each bar, so that bars of one lane do not overlap.
fn lanes(bars: &[Bar]) -> Vec<usize> {
    let mut ends: Vec<Timestamp> = Vec::new();
    let place = |bar: &Bar| {
        let free = ends.iter().position(|end| *end <= bar.from);
        let lane = free.unwrap_or(ends.len().min(MAX_LANES - 1));
        if lane == ends.len() {
            ends.push(bar.to);
        } else {
            ends[lane] = ends[lane].max(bar.to);
        }
        lane
    };
    bars.iter().map(place).collect()
}

/// Returns the time during which at least one lease was held.
fn held_time(bars: &[Bar]) -> Duration {
    let (mut held, mut until) = (Duration::ZERO, Timestamp::from_micros(0));
    for bar in bars {
        held += bar.to.since(bar.from.max(until));
        until = until.max(bar.to);
    }
    held
}

fn position(at: Timestamp, start: Timestamp) -> f64 {
    at.since(start).as_secs_f64() / TIMELINE.as_secs_f64() * WIDTH
}

/// Returns the colour of a holder: the same on every page and after every update.
fn colour(holder: &str) -> u64 {
    holder.bytes().fold(5381_u64, |hash, byte| hash.wrapping_mul(33) ^ u64::from(byte)) % COLOURS
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bar(from: u64, to: u64) -> Bar {
        let at = |hours: u64| Timestamp::from_micros(hours * 3_600_000_000);
        Bar { holder: "a".to_owned(), token: from, from: at(from), to: at(to), end: None }
    }

    #[test]
    fn overlapping_leases_have_lanes_of_their_own() {
        assert_eq!(lanes(&[bar(0, 4), bar(1, 2), bar(2, 3), bar(4, 5)]), [0, 1, 1, 0]);
        let many: Vec<Bar> = (0..20).map(|_| bar(0, 9)).collect();
        assert!(lanes(&many).iter().all(|lane| *lane < MAX_LANES));
    }

    #[test]
    fn time_with_several_holders_counts_once() {
        assert_eq!(held_time(&[bar(0, 4), bar(1, 2), bar(3, 6), bar(8, 9)]), Duration::from_hours(7));
    }
}
