//! Pages of `locks why` and `locks deadlocks` for people: the sentences of the model, and the commands that
//! help.

use leasehold::client::{Deadlocks, DeadlocksView, LockCommandView, LockExplanation, LockExplanationView};
use leasehold::model::{LockReason, TimeWriter};

use super::text::{Style, count, lines, visible, wrapped, wrapped_command};
use super::times::{short, when};

/// Maximum number of waiters listed by name; the rest is only counted.
const NAMED_WAITERS: usize = 10;
/// Blanks before the commands.
const INDENT: usize = 2;

/// Returns the page of `locks why`; `view` has the commands.
pub(crate) fn explanation_page(
    explanation: &LockExplanation,
    view: &LockExplanationView,
    style: Style,
) -> String {
    let now = explanation.status.now;
    let is_unnamed = |reason: &LockReason| matches!(reason, LockReason::Waits { position, .. } if *position > NAMED_WAITERS);
    let times = TimeWriter { when: &|at| when(now, at), elapsed: &|since| short(now.since(since)) };
    let mut sentences = Vec::new();
    for reason in &explanation.reasons {
        match reason {
            LockReason::Waits { position, .. } if *position == NAMED_WAITERS + 1 => {
                let more = explanation.status.waiters.len() - NAMED_WAITERS;
                sentences.push(format!("{more} more wait behind them."));
            }
            reason if is_unnamed(reason) => {}
            reason => sentences.push(reason.text_with(times)),
        }
    }
    let sentences = sentences.iter().map(|sentence| wrapped(&visible(sentence), INDENT, style));
    let head = [String::new(), style.bold("What to do:")];
    lines(sentences.chain(head).chain(command_lines(&view.commands, style)))
}

/// Returns the page of `locks deadlocks`; `view` has the commands.
pub(crate) fn deadlock_page(search: &Deadlocks, view: &DeadlocksView, style: Style) -> String {
    if search.found.is_empty() {
        let waited = count(view.examined, "lock");
        return lines([format!("There is no deadlock; {waited} with waiters examined.")]);
    }
    let mut page = Vec::new();
    for (deadlock, view) in search.found.iter().zip(&view.deadlocks) {
        if !page.is_empty() {
            page.push(String::new());
        }
        page.push(style.bad(wrapped(
            &visible(&format!("Deadlock of {}:", deadlock.lock_list())),
            INDENT,
            style,
        )));
        for wait in &deadlock.waits {
            let waited = short(search.now.since(wait.since));
            let sentence = format!("  {wait}, for {waited}.");
            page.push(wrapped(&visible(&sentence), 2 * INDENT, style));
        }
        page.extend([String::new(), style.bold("What to do:")]);
        page.extend(command_lines(&view.commands, style));
    }
    lines(page)
}

/// Returns commands in two columns: what they are for, and the command.
fn command_lines(commands: &[LockCommandView], style: Style) -> Vec<String> {
    let width = commands.iter().map(|command| command.to.len()).max().unwrap_or(0);
    let line = |command: &LockCommandView| {
        let shown = wrapped_command(&visible(&command.command), INDENT + width + 2, style);
        format!("{:INDENT$}{:width$}  {shown}", "", command.to)
    };
    commands.iter().map(line).collect()
}

#[cfg(test)]
mod tests {
    use leasehold::model::{LockRecord, Timestamp};

    use super::*;
    use crate::output::fixture;
    use crate::output::text::Layout;

    fn why_in((record, now): &(LockRecord, Timestamp), style: Style) -> String {
        let mut explanation = LockExplanation::of(record, &[], *now);
        for reason in &mut explanation.reasons {
            if let LockReason::Held { holder, own, .. } = reason {
                *own = holder.as_str() == "dan";
            }
        }
        let view = LockExplanationView::new(&explanation, "leasehold");
        explanation_page(&explanation, &view, style)
    }

    fn why(lock: &(LockRecord, Timestamp)) -> String {
        why_in(lock, Style::PLAIN)
    }

    #[test]
    fn a_held_lock_is_explained() {
        insta::assert_snapshot!(why(&fixture::held_record("deploy/prod")), @r"
        'deploy/prod' is held by ada@web1:4711 since 2024-11-05T14:31:45Z (12s ago), alone, with token 1730817105000000.
        It is for: work of\nada@web1:4711.
        It was renewed 1 time, last 2s ago, and lasts until 2024-11-05T14:32:25Z (in 28s) unless it is renewed.
        bob@ci asked it to stop 1s ago (hotfix); it is notified at once if the store can, else at its next renewal.
        bob@ci:12 is next in the queue (exclusive, for 4s): it waits for ada@web1:4711.
        eve@ci:13 is number 2 in the queue (shared, for 1s): it waits for bob@ci:12 before it.
        It becomes free when its holder releases it, at 2024-11-05T14:32:25Z (in 28s) unless renewed, or by force.

        What to do:
          wait   leasehold locks wait deploy/prod --for free
          queue  leasehold run deploy/prod --wait 10m -- COMMAND
          force  leasehold locks release deploy/prod --force --token 1730817105000000 --reason 'TEXT'
        ");
    }

    #[test]
    fn lines_fit_a_terminal() {
        let page = why_in(&fixture::held_record("deploy/prod"), Style::plain_as(Layout::Fit(80)));
        assert!(page.lines().all(|line| line.chars().count() <= 80), "{page}");
        let joined = page.replace(" \\\n", "\n").lines().map(str::trim_start).collect::<Vec<_>>().join(" ");
        let whole = why(&fixture::held_record("deploy/prod"));
        let whole = whole.lines().map(str::trim_start).collect::<Vec<_>>().join(" ");
        assert_eq!(joined, whole, "nothing is lost");
        assert!(page.contains("--token 1730817105000000 \\\n           --reason 'TEXT'"), "{page}");
    }

    #[test]
    fn a_long_queue_is_counted() {
        let page = why(&fixture::crowded_record("deploy/prod", 13));
        assert!(page.contains("w10 is number 10 in the queue"), "{page}");
        assert!(page.contains("\n3 more wait behind them.\n"), "{page}");
        assert!(!page.contains("w11"), "{page}");
    }

    #[test]
    fn several_holders_are_explained_and_the_caller_is_marked() {
        insta::assert_snapshot!(why(&fixture::shared_record("deploy/prod")), @r"
        'deploy/prod' is held by carol since 2024-11-05T14:31:49Z (8s ago), shared, with token 1730817109000000.
        It is for: work of\ncarol.
        It has not been renewed yet, and lasts until 2024-11-05T14:32:19Z (in 22s) unless it is renewed.
        It is also held by yourself (dan) since 2024-11-05T14:31:50Z (7s ago), shared, with token 1730817110000000.
        It is for: work of\ndan.
        It has not been renewed yet, and lasts until 2024-11-05T14:32:20Z (in 23s) unless it is renewed.
        No other caller waits for it.
        It becomes free when its 2 holders release it, at 2024-11-05T14:32:20Z (in 23s) unless renewed, or by force.

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
        insta::assert_snapshot!(why(&fixture::stale_record("it's mine")), @r"
        'it's mine' was held by ada@web1:4711 since 2024-11-05T14:31:45Z (33s ago), alone, with token 1730817105000000.
        It is for: work of\nada@web1:4711.
        Its lease expired at 2024-11-05T14:32:15Z (3s ago).
        No other caller waits for it.
        The next acquire, or a sweep, frees it.

        What to do:
          take it   leasehold run 'it'\''s mine' -- COMMAND
          clear it  leasehold sweep
        ");
        insta::assert_snapshot!(why(&fixture::unknown_record("deploy/prod")), @r"
        'deploy/prod' is not held.
        It was never held, or was forgotten since.
        No other caller waits for it.

        What to do:
          take it  leasehold run deploy/prod -- COMMAND
        ");
    }

    #[test]
    fn a_dead_process_is_reported() {
        let Some(lock) = fixture::dead_process("deploy/prod") else { return };
        insta::assert_snapshot!(why(&lock), @r"
        'deploy/prod' is held by ada@web1:4711 since 2024-11-05T14:31:45Z (3s ago), alone, with token 1730817105000000.
        It is for: work of\nada@web1:4711.
        Its process has exited.
        No other caller waits for it.
        The next acquire, or a sweep, frees it.

        What to do:
          take it   leasehold run deploy/prod -- COMMAND
          clear it  leasehold sweep
        ");
    }
}
