//! Dispatch of the command group `locks`.

use super::{acquire, queries, release};
use crate::cli::LocksCommand;
use crate::commands::context::{CommandContext, CommandResult};

pub(in crate::commands) async fn locks(context: &CommandContext, command: LocksCommand) -> CommandResult {
    match command {
        LocksCommand::List(args) => queries::list(context, &args).await,
        LocksCommand::Status(args) => queries::status(context, &args).await,
        LocksCommand::Why { name } => queries::why(context, &name).await,
        LocksCommand::Acquire(args) => acquire::acquire(context, *args).await,
        LocksCommand::Renew(args) => release::renew(context, &args).await,
        LocksCommand::Release(args) if args.force => release::force_release(context, &args).await,
        LocksCommand::Release(args) => release::release(context, &args).await,
        LocksCommand::Ask(args) => release::ask(context, &args).await,
        LocksCommand::Wait(args) => acquire::wait(context, &args).await,
    }
}
