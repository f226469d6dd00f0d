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
    Cli, Command, FenceCommand, LocksCommand, OutputFormat, QueuesCommand, StoreCommand, TasksCommand,
    WorkflowsCommand, is_command,
};
use crate::config::{StoreChoice, logs_renewals};
use crate::exit;
use crate::output::{ListFormat, Printer, set_program, write_for_people};

/// Runs the command and returns the exit code. Must be called while this process has one thread.
pub(crate) fn dispatch(cli: Cli) -> i32 {
    let view = cli.command.list_view();
    let format = match view.output {
        Some(OutputFormat::Wide) => ListFormat::Wide,
        Some(OutputFormat::Name) => ListFormat::Names,
        Some(OutputFormat::Json) | None => ListFormat::Table,
    };
    let printer = Printer::new(cli.global.json, cli.global.quiet).for_list(format, view.watch);
    if printer.is_for_people() {
        write_for_people(cli.global.utc);
    }
    if let Err(failure) = check_open_files() {
        failure.print(printer.json);
        return failure.exit;
    }
    let store = || {
        logs_renewals()?;
        let store = StoreChoice::resolve(cli.global.store.as_deref(), None)?;
        set_program(store.program(), store.is_remote(), is_command);
        match store.missing_file() {
            // A typing error is dangerous: a lock in one store does not exclude the holders of a lock in another.
            Some(missing) if missing.similar.is_some() => printer.message(missing),
            Some(missing) => printer.advise(missing),
            None => {}
        }
        Ok(store)
    };
    let must_end_in_time = ends_in_time(&cli.command);
    let result = match cli.command {
        Command::Run(args) => store().and_then(|store| run::run(*args, &store, printer)),
        Command::Tasks(TasksCommand::Work(args)) => {
            store().and_then(|store| tasks::work::work(*args, &store, printer))
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
        Command::Doctor(args) => {
            let supported = crate::run::probe_modes(); // Requires a single thread.
            block_on(doctor::doctor(&args, store(), supported, printer))
        }
        command => {
            store().and_then(|store| block_on(run_with_store(command, CommandContext { store, printer })))
        }
    };
    result.unwrap_or_else(|failure| {
        // A thread may still wait for the reader of stderr, and no signal ends this process any more.
        if must_end_in_time {
            failure.print_if_read(printer.json);
        } else {
            failure.print(printer.json);
        }
        failure.exit
    })
}

/// Whether the command stops at a signal, and its process ends although its output is not read.
const fn ends_in_time(command: &Command) -> bool {
    #[cfg(feature = "serve")]
    if matches!(command, Command::Serve(_)) {
        return true;
    }
    matches!(command, Command::Tasks(TasksCommand::Work(_)) | Command::Workflows(WorkflowsCommand::Run(_)))
}

async fn run_with_store(command: Command, context: CommandContext) -> CommandResult {
    match command {
        Command::Locks(command) => run_locks(&context, command).await,
        Command::Tasks(command) => run_tasks(&context, command).await,
        Command::Queues(command) => run_queues(&context, command).await,
        Command::Schedules(command) => schedules::schedules(&context, command).await,
        Command::Workflows(command) => workflows::workflows(&context, command).await,
        Command::Executions(command) => workflows::executions(&context, command).await,
        Command::Workers(_) => tasks::queries::workers(&context).await,
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
        Command::Run(_) | Command::Completions(_) | Command::Man | Command::Doctor(_) => Ok(exit::SUCCESS),
    }
}

async fn run_locks(context: &CommandContext, command: LocksCommand) -> CommandResult {
    use locks::{acquire, queries, release};
    match command {
        LocksCommand::List(args) => queries::list(context, &args).await,
        LocksCommand::Status(args) => queries::status(context, &args).await,
        LocksCommand::Why { name } => queries::why(context, &name).await,
        LocksCommand::Deadlocks => queries::deadlocks(context).await,
        LocksCommand::Acquire(args) => acquire::acquire(context, &args).await,
        LocksCommand::Renew(args) => release::renew(context, &args).await,
        LocksCommand::Release(args) if args.force => release::force_release(context, &args).await,
        LocksCommand::Release(args) => release::release(context, &args).await,
        LocksCommand::Ask(args) => release::ask(context, &args).await,
        LocksCommand::Wait(args) => acquire::wait(context, &args).await,
    }
}

async fn run_tasks(context: &CommandContext, command: TasksCommand) -> CommandResult {
    use tasks::{add, logs, queries, update, wait, work};
    match command {
        TasksCommand::Add(args) => add::add(context, *args).await,
        TasksCommand::List(args) => queries::list(context, args).await,
        TasksCommand::Show { id } => queries::show(context, &id).await,
        TasksCommand::Wait(args) => wait::wait(context, &args).await,
        TasksCommand::Why { id } => queries::why(context, &id).await,
        TasksCommand::Logs(args) => logs::of_task(context, &args).await,
        TasksCommand::Counts { queue, .. } => queries::counts(context, queue).await,
        TasksCommand::Retry(args) => update::retry(context, args).await,
        TasksCommand::Cancel(args) => update::cancel(context, args).await,
        TasksCommand::Update(args) => update::update(context, *args).await,
        TasksCommand::Progress(args) => work::progress(args),
        TasksCommand::Recover => update::recover(context).await,
        TasksCommand::Purge(args) => update::purge(context, args).await,
        // Handled in `dispatch`, because it creates its own runtime.
        TasksCommand::Work(_) => Ok(exit::SUCCESS),
    }
}

async fn run_queues(context: &CommandContext, command: QueuesCommand) -> CommandResult {
    use tasks::{queries, update};
    match command {
        QueuesCommand::List { .. } => queries::counts(context, None).await,
        QueuesCommand::Pause(args) => update::pause(context, args).await,
        QueuesCommand::Resume { queue } => update::resume(context, &queue).await,
        QueuesCommand::Retention(args) => update::retention(context, args).await,
    }
}
