//! `queues retention`.

use leasehold::client::RetentionView;
use leasehold::model::{QueueName, Retention, Ttl, format_duration};
use serde::Serialize;

use crate::cli::RetentionArgs;
use crate::commands::dispatch::{Desk, Done};
use crate::exit;

/// Retention of finished tasks, as JSON.
#[derive(Serialize)]
struct Kept<'a> {
    /// Queue; `None` for all queues without a retention of their own.
    queue: Option<&'a str>,
    retention: RetentionView,
}

pub(super) async fn retention(desk: &Desk, args: RetentionArgs) -> Done {
    let RetentionArgs { queue, all, succeeded, failed, aborted, reset } = args;
    let tasks = desk.open().await?.tasks()?;
    let current = match &queue {
        Some(queue) => tasks.retention(queue).await?,
        None => tasks.default_retention().await?,
    };
    let wanted = Retention {
        succeeded: succeeded.or(all).map_or(current.succeeded, |keep| keep.0),
        failed: failed.or(all).map_or(current.failed, |keep| keep.0),
        aborted: aborted.or(all).map_or(current.aborted, |keep| keep.0),
    };
    let says = all.or(succeeded).or(failed).or(aborted).is_some();
    let kept = if says || reset {
        tasks.set_retention(queue.as_ref(), says.then_some(wanted)).await?
    } else {
        current
    };
    let name = queue.as_ref().map(QueueName::as_str);
    let view = Kept { queue: name, retention: RetentionView::from(&kept) };
    desk.printer.done(&view, |_| {
        let of = name.map_or_else(
            || "queues without a retention of their own".to_owned(),
            |name| format!("queue '{name}'"),
        );
        let Retention { succeeded, failed, aborted } = kept;
        let (succeeded, failed, aborted) = (words(succeeded), words(failed), words(aborted));
        format!("{of}: succeeded tasks are kept {succeeded}, failed {failed}, aborted {aborted}\n")
    })?;
    Ok(exit::SUCCESS)
}

fn words(keep: Option<Ttl>) -> String {
    keep.map_or_else(|| "for ever".to_owned(), |keep| format!("for {}", format_duration(keep.as_duration())))
}
