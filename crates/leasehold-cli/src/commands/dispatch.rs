//! Dispatch from the command line to a command, with its store.

use leasehold::{Error, Leasehold};

use super::{
    doctor, events, fence, limits, locks, maintenance, run, schedules, serve, shell, tasks, token, workflows,
};
use crate::cli::{Cli, Command, FenceCommand, StoreCommand, TasksCommand, WorkersCommand, WorkflowsCommand};
use crate::config::{StoreChoice, logs_renewals};
use crate::connect::{Deadline, connect, open};
use crate::exit;
use crate::output::{Failure, Printer, set_program};
use crate::run::WaitTimeout;

/// Result of a command: an exit code, or a failure to print.
pub(super) type CommandResult = Result<i32, Failure>;

/// Context of a command that needs a store.
pub(super) struct CommandContext {
    store: StoreChoice,
    pub(super) printer: Printer,
}

impl CommandContext {
    /// Opens the store. Called after all checks that do not need it.
    pub(super) async fn open(&self) -> Result<Leasehold, Failure> {
        Ok(open(&self.store.url).await?)
    }

    /// Opens the store, and retries until the deadline if the store cannot be reached.
    pub(super) async fn open_within(&self, deadline: Deadline) -> Result<Leasehold, Failure> {
        let on_first_error = |error: &Error| self.printer.message(format_args!("{error}; trying again"));
        Ok(connect(&self.store.url, deadline, on_first_error).await?)
    }

    /// Opens the store; fails if its contents do not outlive this process.
    pub(super) async fn open_persistent(&self, what: &str) -> Result<Leasehold, Failure> {
        self.open_persistent_within(what, Deadline::new(WaitTimeout::FailFast)).await
    }

    /// Opens the store as [`Self::open_persistent`] does, and retries until the deadline if the store
    /// cannot be reached.
    pub(super) async fn open_persistent_within(
        &self,
        what: &str,
        deadline: Deadline,
    ) -> Result<Leasehold, Failure> {
        let leasehold = self.open_within(deadline).await?;
        if leasehold.capabilities().lasting {
            return Ok(leasehold);
        }
        let message = format!("{what} in the store {} would end with this command", leasehold.url());
        Err(Failure::config(message).hint("use a persistent store, such as sqlite:"))
    }

    /// Returns the URL of the store, including its secrets.
    pub(super) fn store_url(&self) -> &str {
        &self.store.url
    }

    /// Returns the command line prefix that makes this program use the same store.
    pub(super) fn program(&self) -> String {
        self.store.program()
    }
}

/// Runs the command and returns the exit code. Must be called while this process has one thread.
pub(crate) fn dispatch(cli: Cli) -> i32 {
    let printer = Printer::new(cli.global.json, cli.global.quiet);
    if let Err(failure) = limits::check_open_files() {
        failure.print(printer.json);
        return failure.exit;
    }
    let store = || {
        logs_renewals()?;
        StoreChoice::resolve(cli.global.store.as_deref()).inspect(|store| set_program(store.program()))
    };
    let result = match cli.command {
        Command::Run(args) => store().and_then(|store| run::run(*args, &store, printer)),
        Command::Tasks(TasksCommand::Work(args)) => {
            store().and_then(|store| tasks::work(*args, &store, printer))
        }
        Command::Serve(args) => serve::serve(&args, cli.global.store.as_deref(), printer),
        Command::Workflows(WorkflowsCommand::Run(args)) => {
            store().and_then(|store| workflows::run(*args, &store, printer))
        }
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

pub(super) fn block_on(work: impl Future<Output = CommandResult>) -> CommandResult {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.map_err(Failure::internal)?.block_on(work)
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
        Command::Token(command) => token::token(&context, command).await,
        Command::History(args) => events::history(&context, &args).await,
        Command::Watch(args) => events::watch(&context, &args).await,
        Command::Sweep(args) => maintenance::sweep(&context, &args).await,
        Command::Store(StoreCommand::Init) => maintenance::init(&context).await,
        Command::Fence(FenceCommand::Check(args)) => fence::check(&context, &args).await,
        // Handled in `dispatch`: these commands open the store themselves, or need none.
        Command::Run(_) | Command::Serve(_) | Command::Completions(_) | Command::Man | Command::Doctor => {
            Ok(exit::SUCCESS)
        }
    }
}
