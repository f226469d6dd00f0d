//! `tasks update`.

use leasehold::client::TaskView;
use leasehold::model::{Change, RetryPolicy};

use super::payload;
use crate::cli::UpdateArgs;
use crate::commands::dispatch::{Desk, Done};
use crate::exit;
use crate::identity::Identity;

pub(super) async fn update(desk: &Desk, args: UpdateArgs) -> Done {
    let payload = args.payload.map(|source| payload::read(Some(source))).transpose()?;
    let tasks = desk.open().await?.tasks()?;
    let retries = match args.max_attempts {
        // The delays of the policy stay. If they change in between, so does the version.
        Some(attempts) => Some(RetryPolicy { attempts, ..tasks.get(args.id).await?.retries }),
        None => None,
    };
    let change = Change {
        expected: args.version,
        by: Some(Identity::here().person()?),
        payload,
        priority: args.priority,
        run_at: args.run_at,
        retries,
        archived: None,
    };
    let task = tasks.update(args.id, change).await?;
    desk.printer.done(&TaskView::from(&task), |_| {
        format!("{}  {}, version {}\n", task.id, task.state, task.version)
    })?;
    Ok(exit::SUCCESS)
}
