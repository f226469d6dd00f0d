//! `serve`, up to the plan: the rest is in `crate::serve`.

use leasehold_server::config::Settings;
use serde::Serialize;

use super::context::CommandResult;
use crate::cli::{ServeArgs, is_command};
use crate::config::{StoreChoice, containment};
use crate::output::{Failure, Printer, count, set_program};
use crate::serve::{ServePlan, Validity, chosen_tls, serve as serve_plan, validity};

pub(super) fn serve(args: &ServeArgs, store: Option<&str>, printer: Printer) -> CommandResult {
    let mut settings = match &args.config {
        Some(file) => {
            // Paths in the file are relative to its folder, whatever the current directory is.
            let file = std::path::absolute(file).map_err(Failure::internal)?;
            Settings::read(&file).map_err(|mistake| {
                mistake.hint().into_iter().fold(Failure::config(mistake.to_string()), Failure::hint)
            })?
        }
        None => Settings::default(),
    };
    settings.open |= args.open;
    settings.no_dashboard |= args.no_dashboard;
    settings.tls = chosen_tls(&args.tls, settings.tls)?;
    let in_file = settings.store.as_ref().zip(args.config.as_deref());
    let store = StoreChoice::resolve(store, in_file.map(|(url, file)| (url.expose(), file)))?;
    set_program(store.program(), store.is_remote(), is_command);
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
    printer.result(&checked, |_| checked.line())
}

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
