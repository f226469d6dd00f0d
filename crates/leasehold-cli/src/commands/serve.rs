//! `serve`, up to the plan: the rest is in `crate::serve`.

use std::path::Path;

use leasehold_server::config::{Mistake, Settings};
use serde::Serialize;

use super::dispatch::Done;
use crate::cli::ServeArgs;
use crate::config::{Choice, containment};
use crate::exit;
use crate::output::{Failure, Printer, count};
use crate::serve::{ServePlan, serve as serve_plan};

pub(super) fn serve(args: &ServeArgs, store: Option<&str>, printer: Printer) -> Done {
    let settings = match &args.config {
        Some(file) => Settings::read(&absolute(file)?).map_err(mistake)?,
        None => Settings::default(),
    };
    let in_file = settings.store.as_ref().zip(args.config.as_deref());
    let store = Choice::with_file(store, in_file.map(|(url, file)| (url.expose(), file)))?;
    let plan = ServePlan::new(settings, args.listen, &store, containment(args.contain)?)?;
    if !args.check {
        return serve_plan(plan, printer);
    }
    let checked = Checked {
        success: true,
        store: store.shown(),
        workflows: plan.settings.workflows.len(),
        triggers: plan.settings.triggers.len(),
        schedules: plan.settings.schedules.len(),
        tokens: plan.settings.tokens.len(),
    };
    printer.result(&checked, |_| checked.line())?;
    Ok(exit::SUCCESS)
}

/// Paths in the file begin where it is, wherever we are.
fn absolute(file: &Path) -> Result<std::path::PathBuf, Failure> {
    std::path::absolute(file).map_err(Failure::internal)
}

#[expect(clippy::needless_pass_by_value, reason = "the shape of map_err")]
fn mistake(mistake: Mistake) -> Failure {
    let failure = Failure::config(mistake.to_string());
    match mistake.hint() {
        Some(hint) => failure.hint(hint),
        None => failure,
    }
}

/// Settings that can be used.
#[derive(Serialize)]
struct Checked {
    success: bool,
    store: String,
    workflows: usize,
    triggers: usize,
    schedules: usize,
    tokens: usize,
}

impl Checked {
    fn line(&self) -> String {
        let [workflows, triggers, schedules, tokens] = [
            (self.workflows, "workflow"),
            (self.triggers, "trigger"),
            (self.schedules, "schedule"),
            (self.tokens, "token"),
        ]
        .map(|(number, word)| count(number as u64, word));
        format!("the settings can be used: {workflows}, {triggers}, {schedules}, {tokens}\n")
    }
}
