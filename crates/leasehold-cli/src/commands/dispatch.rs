//! Dispatch from the command line to a command, with its store.

use super::context::{CommandContext, CommandResult, block_on, check_open_files};
#[cfg(feature = "torture")]
use super::torture;
use super::{doctor, events, fence, locks, maintenance, run, schedules, shell, tasks, workflows};
#[cfg(feature = "serve")]
use super::{serve, token};
#[cfg(feature = "torture")]
use crate::cli::TortureCommand;
use crate::cli::{
    Cli, Command, FenceCommand, StoreCommand, TasksCommand, WorkersCommand, WorkflowsCommand, is_command,
};
use crate::config::{StoreChoice, logs_renewals};
use crate::exit;
use crate::output::{Printer, set_program};

/// Runs the command and returns the exit code. Must be called while this process has one thread.
pub(crate) fn dispatch(cli: Cli) -> i32 {
    let printer = Printer::new(cli.global.json, cli.global.quiet);
    if let Err(failure) = check_open_files() {
        failure.print(printer.json);
        return failure.exit;
    }
    let store = || {
        logs_renewals()?;
        let store = StoreChoice::resolve(cli.global.store.as_deref());
        store.inspect(|store| set_program(store.program(), is_command))
    };
    let result = match cli.command {
        Command::Run(args) => store().and_then(|store| run::run(*args, &store, printer)),
        Command::Tasks(TasksCommand::Work(args)) => {
            store().and_then(|store| tasks::work(*args, &store, printer))
        }
        #[cfg(feature = "serve")]
        Command::Serve(args) => serve::serve(&args, cli.global.store.as_deref(), printer),
        Command::Workflows(WorkflowsCommand::Run(args)) => {
            store().and_then(|store| workflows::run(*args, &store, printer))
        }
        #[cfg(feature = "torture")]
        Command::Torture(args) => match &args.command {
            Some(TortureCommand::Worker) => torture::worker(),
            Some(TortureCommand::Check { file }) => torture::check(file, printer),
            None => store().and_then(|store| torture::torture(&args, &store, printer)),
        },
        Command::Completions(args) => shell::completions(args.shell, printer),
        Command::Man => shell::man(printer),
        Command::Doctor => {
            let supported = crate::run::probe_modes(); // Requires a single thread.
            block_on(doctor::doctor(store(), supported, printer))
        }
        command => {
            store().and_then(|store| block_on(run_with_store(command, CommandContext { store, printer })))
        }
    };
    result.unwrap_or_else(|failure| {
        failure.print(printer.json);
        failure.exit
    })
}

async fn run_with_store(command: Command, context: CommandContext) -> CommandResult {
    match command {
        Command::Locks(command) => locks::locks(&context, command).await,
        Command::Tasks(command) => tasks::tasks(&context, command).await,
        Command::Queues(command) => tasks::queues(&context, command).await,
        Command::Schedules(command) => schedules::schedules(&context, command).await,
        Command::Workflows(command) => workflows::workflows(&context, command).await,
        Command::Executions(command) => workflows::executions(&context, command).await,
        Command::Workers { command: None | Some(WorkersCommand::List) } => tasks::workers(&context).await,
        #[cfg(feature = "serve")]
        Command::Token(command) => token::token(&context, command).await,
        Command::History(args) => events::history(&context, &args).await,
        Command::Watch(args) => events::watch(&context, &args).await,
        Command::Sweep(args) => maintenance::sweep(&context, &args).await,
        Command::Store(StoreCommand::Init) => maintenance::init(&context).await,
        Command::Fence(FenceCommand::Check(args)) => fence::check(&context, &args).await,
        // Handled in `dispatch`: these commands open the store themselves, or need none.
        #[cfg(feature = "serve")]
        Command::Serve(_) => Ok(exit::SUCCESS),
        #[cfg(feature = "torture")]
        Command::Torture(_) => Ok(exit::SUCCESS),
        Command::Run(_) | Command::Completions(_) | Command::Man | Command::Doctor => Ok(exit::SUCCESS),
    }
}
