//! `serve`, up to the plan: the rest is in `crate::serve`.

use std::path::Path;

use leasehold_server::config::{ConfigError, Settings};
use serde::Serialize;

use super::context::CommandResult;
use crate::cli::{ServeArgs, is_command};
use crate::config::{StoreChoice, containment};
use crate::exit;
use crate::output::{Failure, Printer, count, set_program};
use crate::serve::{ServePlan, Validity, chosen_tls, serve as serve_plan, validity};

pub(super) fn serve(args: &ServeArgs, store: Option<&str>, printer: Printer) -> CommandResult {
    let mut settings = match &args.config {
        Some(file) => Settings::read(&absolute(file)?).map_err(mistake)?,
        None => Settings::default(),
    };
    settings.open |= args.open;
    settings.tls = chosen_tls(&args.tls, settings.tls)?;
    let in_file = settings.store.as_ref().zip(args.config.as_deref());
    let store = StoreChoice::resolve_with_file(store, in_file.map(|(url, file)| (url.expose(), file)))?;
    set_program(store.program(), is_command);
    let plan = ServePlan::new(settings, args.listen, &store, containment(args.contain)?)?;
    if !args.check {
        return serve_plan(plan, printer);
    }
    let warning = match plan.tls.as_ref().map(validity) {
        Some(Validity::Expired(message)) => {
            return Err(Failure::config(message).hint("renew it: clients refuse it"));
        }
        Some(Validity::Soon(message)) => Some(message),
        Some(Validity::Good) | None => None,
    };
    if let Some(warning) = &warning {
        printer.message(format_args!("leasehold: warning: {warning}"));
    }
    let checked = Checked {
        success: true,
        tls: plan.tls.is_some(),
        warning,
        store: store.redacted(),
        workflows: plan.settings.workflows.len(),
        triggers: plan.settings.triggers.len(),
        schedules: plan.settings.schedules.len(),
        tokens: plan.settings.tokens.len(),
    };
    printer.result(&checked, |_| checked.line())?;
    Ok(exit::SUCCESS)
}

/// Returns the absolute path: paths in the file are relative to its folder, whatever the current
/// directory is.
fn absolute(file: &Path) -> Result<std::path::PathBuf, Failure> {
    std::path::absolute(file).map_err(Failure::internal)
}

#[expect(clippy::needless_pass_by_value, reason = "the shape of map_err")]
fn mistake(mistake: ConfigError) -> Failure {
    let failure = Failure::config(mistake.to_string());
    match mistake.hint() {
        Some(hint) => failure.hint(hint),
        None => failure,
    }
}

/// Summary of valid settings.
#[derive(Serialize)]
struct Checked {
    success: bool,
    tls: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    warning: Option<String>,
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
        format!("the settings are valid: {workflows}, {triggers}, {schedules}, {tokens}\n")
    }
}
