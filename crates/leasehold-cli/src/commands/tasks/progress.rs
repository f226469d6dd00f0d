//! `tasks progress`: reports progress from within a command of `tasks work`.

use std::fs::File;
use std::io::Write;
use std::os::unix::fs::FileTypeExt;

use leasehold::model::Progress;

use crate::cli::ProgressArgs;
use crate::commands::dispatch::Done;
use crate::exit;
use crate::output::Failure;
use crate::run::PROGRESS;

/// Maximum length of the note, in bytes, so that the line is written atomically.
const NOTE_BYTES: usize = 500;

pub(super) fn progress(args: ProgressArgs) -> Done {
    let Some(path) = std::env::var_os(PROGRESS) else {
        return Err(Failure::usage(format!("there is no {PROGRESS} here: no command of a task runs this"))
            .hint("use it in a command that a worker runs: tasks work, workflows run, or a workflow of a server"));
    };
    let mut progress = Progress { done: args.done, of: args.of, note: None };
    if let Some(note) = args.note {
        progress = progress.note(&note[..note.floor_char_boundary(NOTE_BYTES)]);
    }
    let line = serde_json::to_string(&progress).map_err(Failure::internal)? + "\n";
    let over = |_| Failure::lost("the attempt that this command belongs to is over");
    let mut pipe = File::options().write(true).open(path).map_err(over)?;
    // The pid in the path may have been reused; a file that is not a pipe must not be written to.
    if !pipe.metadata().is_ok_and(|facts| facts.file_type().is_fifo()) {
        return Err(Failure::usage(format!("{PROGRESS} does not lead to the worker")));
    }
    pipe.write_all(line.as_bytes()).map_err(over)?;
    Ok(exit::SUCCESS)
}
