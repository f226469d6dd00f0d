//! Dispatch from the command line to a command, with its store.

use leasehold::{Error, Leasehold};

use super::{
    acquire, ask, doctor, fence, force, history, lease, limits, list, look, run, schedules, serve, shell,
    store, sweep, tasks, token, wait, watch, workflows,
};
use crate::cli::{
    Cli, Command, FenceCommand, LocksCommand, StoreCommand, TasksCommand, WorkersCommand, WorkflowsCommand,
};
use crate::config::{Choice, logs_renewals};
use crate::connect::{Deadline, connect, open};
use crate::exit;
use crate::output::{Failure, Printer, set_program};
use crate::run::Patience;

/// Result of a command: an exit code, or a failure to print.
pub(super) type Done = Result<i32, Failure>;

/// Context of a command that needs a store.
pub(super) struct Desk {
    store: Choice,
    pub(super) printer: Printer,
}

impl Desk {
    /// Opens the store. Called after all checks that do not need it.
    pub(super) async fn open(&self) -> Result<Leasehold, Failure> {
        Ok(open(&self.store.url).await?)
    }

    /// Opens the store, and retries until the deadline if the store cannot be reached.
    pub(super) async fn open_within(&self, deadline: Deadline) -> Result<Leasehold, Failure> {
        let say = |error: &Error| self.printer.say(format_args!("{error}; trying again"));
        Ok(connect(&self.store.url, deadline, say).await?)
    }

    /// Opens the store; fails if its contents do not outlive this process.
    pub(super) async fn open_lasting(&self, what: &str) -> Result<Leasehold, Failure> {
        self.open_lasting_within(what, Deadline::new(Patience::FailFast)).await
    }

    /// Opens the store as [`Self::open_lasting`] does, and retries until the deadline if the store
    /// cannot be reached.
    pub(super) async fn open_lasting_within(
        &self,
        what: &str,
        deadline: Deadline,
    ) -> Result<Leasehold, Failure> {
        let leasehold = self.open_within(deadline).await?;
        if leasehold.capabilities().lasting {
            return Ok(leasehold);
        }
        let wrong = format!("{what} in the store {} would end with this command", leasehold.url());
        Err(Failure::config(wrong).hint("use a store that lasts, such as sqlite:"))
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
        Choice::make(cli.global.store.as_deref()).inspect(|store| set_program(store.program()))
    };
    let done = match cli.command {
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
            let machine = crate::run::inspect_machine(); // Requires a single thread.
            block_on(doctor::doctor(store(), machine, printer))
        }
        command => store().and_then(|store| block_on(at_desk(command, Desk { store, printer }))),
    };
    done.unwrap_or_else(|failure| {
        failure.print(printer.json);
        failure.exit
    })
}

pub(super) fn block_on(work: impl Future<Output = Done>) -> Done {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.map_err(Failure::internal)?.block_on(work)
}

async fn at_desk(command: Command, desk: Desk) -> Done {
    match command {
        Command::Locks(command) => locks(&desk, command).await,
        Command::Tasks(command) => tasks::tasks(&desk, command).await,
        Command::Queues(command) => tasks::queues(&desk, command).await,
        Command::Schedules(command) => schedules::schedules(&desk, command).await,
        Command::Workflows(command) => workflows::workflows(&desk, command).await,
        Command::Executions(command) => workflows::executions(&desk, command).await,
        Command::Workers { command: None | Some(WorkersCommand::List) } => tasks::workers(&desk).await,
        Command::Token(command) => token::token(&desk, command).await,
        Command::History(args) => history::history(&desk, &args).await,
        Command::Watch(args) => watch::watch(&desk, &args).await,
        Command::Sweep(args) => sweep::sweep(&desk, &args).await,
        Command::Store(StoreCommand::Init) => store::init(&desk).await,
        Command::Fence(FenceCommand::Check(args)) => fence::check(&desk, &args).await,
        // Handled in `dispatch`: these commands need no desk.
        Command::Run(_) | Command::Serve(_) | Command::Completions(_) | Command::Man | Command::Doctor => {
            Ok(exit::SUCCESS)
        }
    }
}

async fn locks(desk: &Desk, command: LocksCommand) -> Done {
    match command {
        LocksCommand::List(args) => list::list(desk, &args).await,
        LocksCommand::Status(args) => look::status(desk, &args).await,
        LocksCommand::Why { name } => look::why(desk, &name).await,
        LocksCommand::Acquire(args) => acquire::acquire(desk, *args).await,
        LocksCommand::Renew(args) => lease::renew(desk, &args).await,
        LocksCommand::Release(args) if args.force => force::force_release(desk, &args).await,
        LocksCommand::Release(args) => lease::release(desk, &args).await,
        LocksCommand::Ask(args) => ask::ask(desk, &args).await,
        LocksCommand::Wait(args) => wait::wait(desk, &args).await,
    }
}
