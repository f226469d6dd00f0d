//! Overview: the state of the store, what needs attention, and the last hours.

use leasehold::LockStatus;
use leasehold::model::{TaskState, Timestamp};
use maud::{Markup, html};

use super::locks::table;
use crate::dashboard::data::OverviewContent;
use crate::dashboard::figures::series::{Minute, quantile};
use crate::dashboard::http::browser::Browser;
use crate::dashboard::pages::parts;
use crate::dashboard::svg::chart::{self, Line, Span, chart};
use crate::dashboard::svg::ring;
use crate::dashboard::view::{TaskStateKey, TasksView, View};

/// Maximum number of locks in the table of the overview.
const MAX_LOCKS: usize = 8;
/// Maximum number of entries in the list of what needs attention.
const MAX_ATTENTION: usize = 8;
/// Time after which a held lock with waiters needs attention.
const LONG: std::time::Duration = std::time::Duration::from_mins(10);

/// Returns the page.
pub(in crate::dashboard) fn page(
    browser: &Browser,
    span: Span,
    now: Timestamp,
    content: &OverviewContent,
) -> Markup {
    let tab =
        |to: Span| (browser.link(&View::Overview(to).address()), to.word().to_owned(), None, to == span);
    let attention = attention(browser, now, content);
    html! {
        h1.hidden { "Overview" }
        (tiles(browser, now, content))
        (ring::of_store(browser, now, content))
        @if !attention.is_empty() {
            section.card {
                h2 { "Needs attention" }
                ul.attention { @for entry in attention.iter().take(MAX_ATTENTION) { li { (entry) } }
                    @if attention.len() > MAX_ATTENTION { li.quiet { (attention.len() - MAX_ATTENTION) " more" } } }
            }
        }
        section {
            h2 { "Locks in use, most waiters first" }
            @if content.locks.is_empty() {
                (parts::empty("No lock is in use", &html! { "Acquire one with " code { "leasehold run NAME -- COMMAND" } "." }))
            } @else {
                (table(browser, &content.locks[..content.locks.len().min(MAX_LOCKS)], now))
                p { a href=(browser.link("/locks")) { "All locks" } }
            }
        }
        section {
            div.head { h2 { "Charts" } (parts::tabs("Length of the charts", &Span::ALL.map(tab))) }
            (charts(span, now, content))
        }
    }
}

fn tiles(browser: &Browser, now: Timestamp, content: &OverviewContent) -> Markup {
    let counts = content.counts.as_deref();
    let tasks = |state: TaskState| {
        counts.map(|counts| {
            counts
                .tasks
                .iter()
                .filter(|((_, known), _)| *known == state.as_str())
                .map(|(_, n)| n)
                .sum::<u64>()
        })
    };
    let workers = counts.map(|counts| {
        let of = |state| counts.workers.get(state).copied().unwrap_or_default();
        format!("{}/{}", of("alive") + of("draining"), of("alive") + of("draining") + of("dead"))
    });
    let number = |count: Option<u64>| count.map_or_else(|| "–".to_owned(), parts::grouped);
    let more = if counts.is_some_and(|counts| counts.has_more_locks) { "+" } else { "" };
    let locks = |count: Option<u64>| number(count) + more;
    let hour = |figure: fn(&Minute) -> u64| {
        let since = (now.as_micros() / 60_000_000).saturating_sub(60);
        parts::grouped(content.figures.iter().filter(|minute| minute.number > since).map(figure).sum())
    };
    let recovered: u64 = content.figures.iter().map(|minute| minute.recovered).sum();
    let state = |state| {
        let view = TasksView { state: Some(TaskStateKey::of(state)), ..TasksView::default() };
        View::Tasks(view).address()
    };
    let all = [
        ("/locks?state=held".to_owned(), locks(counts.map(|counts| counts.locks_held)), "locks held"),
        ("/locks?state=waited".to_owned(), locks(counts.map(|counts| counts.lock_waiters)), "waiting"),
        ("/audit?kind=acquired".to_owned(), hour(|minute| minute.acquisitions), "acquired, 1 h"),
        ("/locks?state=waited".to_owned(), hour(|minute| minute.conflicts), "conflicts, 1 h"),
        ("/audit?kind=expired".to_owned(), parts::grouped(recovered), "recovered, 24 h"),
        (state(TaskState::Pending), number(tasks(TaskState::Pending)), "tasks pending"),
        (state(TaskState::Running), number(tasks(TaskState::Running)), "tasks running"),
        (state(TaskState::Failed), number(tasks(TaskState::Failed)), "tasks failed"),
        ("/workers".to_owned(), workers.unwrap_or_else(|| "–".to_owned()), "workers alive"),
    ];
    html! {
        div.tiles {
            @for (path, value, label) in &all {
                a.tile href=(browser.link(path)) { span.value { (value) } span.label { (label) } }
            }
        }
    }
}

fn attention(browser: &Browser, now: Timestamp, content: &OverviewContent) -> Vec<Markup> {
    let is_long = |lock: &&LockStatus| {
        !lock.waiters.is_empty() && lock.locked_since.is_some_and(|since| now.since(since) > LONG)
    };
    let long = content.locks.iter().map(|lock| &lock.status).filter(is_long).map(|lock| {
        html! {
            (parts::badge("warn", "long held")) " " (parts::lock_link(browser, &lock.name)) " for "
            @if let Some(since) = lock.locked_since { (parts::age(now, since)) }
            ", " (lock.waiters.len()) " waiting"
        }
    });
    let stale = content.locks.iter().map(|lock| &lock.status).filter(|lock| lock.is_stale).map(|lock| {
        html! { (parts::badge("bad", "stale")) " " (parts::lock_link(browser, &lock.name)) ": the lease has expired" }
    });
    let paused = content.queues.iter().filter_map(|queue| queue.paused.as_ref().map(|pause| (queue, pause)));
    let paused = paused.map(|(queue, pause)| {
        html! {
            (parts::badge("warn", "paused")) " queue " a href=(browser.link("/queues")) { (parts::name(&queue.queue)) }
            " by " (parts::name(&pause.by)) ", " (parts::ago(now, pause.at)) ", " (parts::grouped(queue.counts.open())) " tasks open"
        }
    });
    let failed = content.queues.iter().filter(|queue| queue.counts.get(TaskState::Failed) > 0).map(|queue| {
        let view = TasksView {
            queue: Some(queue.queue.clone()),
            state: Some(TaskStateKey::of(TaskState::Failed)),
            ..TasksView::default()
        };
        html! {
            (parts::badge("bad", "failed")) " " (parts::grouped(queue.counts.get(TaskState::Failed)))
            @if queue.counts.get(TaskState::Failed) == 1 { " task of " } @else { " tasks of " }
            a href=(browser.link(&View::Tasks(view).address())) { (parts::name(&queue.queue)) }
        }
    });
    let dead = content.dead_workers.iter().map(|worker| {
        html! {
            (parts::badge("bad", "dead")) " worker on " a href=(browser.link("/workers")) { (parts::name(&worker.info.host)) }
            ", last heartbeat " (parts::ago(now, worker.seen_at))
        }
    });
    long.chain(stale).chain(paused).chain(failed).chain(dead).collect()
}

fn charts(span: Span, now: Timestamp, content: &OverviewContent) -> Markup {
    if content.figures.is_empty() {
        return parts::empty(
            "No figures yet",
            &html! { "The server records figures every minute; they are kept for 24 hours." },
        );
    }
    let sum = |label, colour, figure: fn(&Minute) -> u64| {
        let values =
            steps(span, now, &content.figures, |minutes| minutes.iter().map(|minute| figure(minute)).sum());
        Line { label, colour, values }
    };
    let most = |label, colour, figure: &dyn Fn(&Minute) -> u64| {
        let values = steps(span, now, &content.figures, |minutes| {
            minutes.iter().map(|minute| figure(minute)).max().unwrap_or(0)
        });
        Line { label, colour, values }
    };
    let wait = |label, colour, share: f64| {
        let values = buckets(span, now, &content.figures).into_iter().map(|minutes| {
            let mut sum = Minute::default();
            for minute in &minutes {
                sum.merge(minute);
            }
            quantile(&sum.waits, &content.bounds, share).unwrap_or_default()
        });
        Line { label, colour, values: values.collect() }
    };
    let tasks = |state: TaskState, colour| {
        most(state.as_str(), colour, &move |minute| {
            minute.tasks.get(state.as_str()).copied().unwrap_or_default()
        })
    };
    let per = |what: &str| format!("{what} per {} minutes", span.step());
    let chart = |title: &str, lines: &[Line], format| chart(span, title, lines, format);
    html! {
        div.charts {
            (chart("Locks", &[most("held", 0, &|minute| minute.held), most("waiting", 2, &|minute| minute.waiting)], chart::count))
            (chart(&per("Acquisitions"), &[
                sum("acquired", 0, |minute| minute.acquisitions),
                sum("conflicts", 2, |minute| minute.conflicts),
            ], chart::count))
            (chart("Time to acquire", &[wait("p50", 1, 0.5), wait("p99", 5, 0.99)], chart::seconds))
            (chart(&per("Recoveries and errors"), &[
                sum("recovered locks", 2, |minute| minute.recovered),
                sum("expired task leases", 3, |minute| minute.task_expiries),
                sum("store errors", 5, |minute| minute.failures),
            ], chart::count))
            (chart("Tasks by state", &[
                tasks(TaskState::Pending, 1), tasks(TaskState::Running, 0), tasks(TaskState::Blocked, 2), tasks(TaskState::Failed, 5),
            ], chart::count))
            (chart(&per("Task leases"), &[sum("leased", 0, |minute| minute.task_leases)], chart::count))
        }
        p.quiet { "Counted by all servers of this store. Processes that use the store directly are not counted, except in held locks, waiters and tasks." }
    }
}

/// Returns the minutes of each step; the last step ends now.
fn buckets(span: Span, now: Timestamp, figures: &[Minute]) -> Vec<Vec<&Minute>> {
    let last = now.as_micros() / 60_000_000;
    let mut steps = vec![Vec::new(); span.steps()];
    for minute in figures {
        let age = last.checked_sub(minute.number).and_then(|age| usize::try_from(age / span.step()).ok());
        let place = age.and_then(|age| span.steps().checked_sub(age + 1));
        if let Some(place) = place {
            steps[place].push(minute);
        }
    }
    steps
}

fn steps(span: Span, now: Timestamp, figures: &[Minute], value: impl Fn(&[&Minute]) -> u64) -> Vec<f64> {
    #[expect(clippy::cast_precision_loss, reason = "a chart is not exact")]
    let value = |minutes: &Vec<&Minute>| value(minutes) as f64;
    buckets(span, now, figures).iter().map(value).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_in_the_step_of_their_time() {
        let now = Timestamp::from_micros(10_005 * 60_000_000);
        let at = |minute| Minute { number: minute, acquisitions: 1, ..Minute::default() };
        let figures = [at(10_005), at(10_004), at(9_996), at(9_995), at(10_006 - 24 * 60), at(1), at(20_000)];
        let values = |span| {
            steps(span, now, &figures, |minutes| minutes.iter().map(|minute| minute.acquisitions).sum())
        };
        let day = values(Span::Day);
        assert_eq!((day.len(), day[143], day[142], day[0]), (144, 3.0, 1.0, 1.0));
        assert!((day.iter().sum::<f64>() - 5.0).abs() < f64::EPSILON);
        let hour = values(Span::Hour);
        assert_eq!((hour.len(), hour[29], hour[25], hour[24]), (30, 2.0, 1.0, 1.0));
        assert!((hour.iter().sum::<f64>() - 4.0).abs() < f64::EPSILON);
    }
}
