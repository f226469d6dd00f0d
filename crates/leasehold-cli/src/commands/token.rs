//! `token new`, `list`, `revoke`: manages access to a server over this store.

use leasehold::store::{local_token_path, read_local_token};
use leasehold_server::access::{FixedToken, Scope, TokenStatus, TokenStore};
use serde::Serialize;

use super::context::{CommandContext, CommandResult};
use crate::cli::{NewTokenArgs, TokenCommand};
use crate::exit;
use crate::output::{Failure, List, Printer, token_table};

pub(super) async fn token(context: &CommandContext, command: TokenCommand) -> CommandResult {
    match command {
        TokenCommand::New(args) if args.print_hash => hashed(context.printer, &args),
        TokenCommand::New(args) => new(context, &args).await,
        TokenCommand::Local => local(context.printer),
        TokenCommand::List { .. } => list(context).await,
        TokenCommand::Revoke { id } => revoke(context, &id).await,
    }
}

#[derive(Serialize)]
struct Made<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    id: Option<&'a str>,
    name: &'a str,
    role: leasehold_server::Role,
    #[serde(skip_serializing_if = "<[Scope]>::is_empty")]
    scopes: &'a [Scope],
    token: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    hash: Option<&'a str>,
}

async fn new(context: &CommandContext, args: &NewTokenArgs) -> CommandResult {
    let leasehold = context.open_persistent("a token").await?;
    let tokens = TokenStore::new(leasehold);
    let made = tokens.create_scoped(args.name.as_str(), args.role, args.lasts, args.scope.clone()).await?;
    let view = Made {
        id: Some(&made.id),
        name: args.name.as_str(),
        role: args.role,
        scopes: &args.scope,
        token: &made.text,
        hash: None,
    };
    let code = context.printer.success(&view, |_| format!("{}\n", made.text))?;
    context.printer.advise(format_args!(
        "keep it: it is not shown again. Revoke it with: {} token revoke {}",
        context.program(),
        made.id
    ));
    Ok(code)
}

#[derive(Serialize)]
struct Local<'a> {
    token: &'a str,
    file: &'a std::path::Path,
}

fn local(printer: Printer) -> CommandResult {
    let Some(file) = local_token_path() else {
        let message = "there is no state folder: neither XDG_STATE_HOME nor HOME is an absolute path";
        return Err(Failure::config(message).hint("set HOME to the home folder of this user"));
    };
    let read = read_local_token(&file).map_err(|error| {
        Failure::config(format!("the token in {} cannot be read: {error}", file.display()))
            .hint("remove the file: the next start of leasehold serve creates another one")
    })?;
    let Some(token) = read else {
        let message = format!("there is no local token: {} does not exist", file.display());
        return Err(Failure::config(message).hint("the first start of leasehold serve creates it"));
    };
    printer.result(&Local { token: &token, file: &file }, |_| format!("{token}\n"))
}

/// Generates a token that is stored nowhere: only its hash goes into the settings file.
fn hashed(printer: Printer, args: &NewTokenArgs) -> CommandResult {
    let (token, hash) = FixedToken::generate();
    let (name, role) = (args.name.as_str(), args.role);
    let view = Made { id: None, name, role, scopes: &args.scope, token: &token, hash: Some(&hash) };
    let scopes = if args.scope.is_empty() {
        String::new()
    } else {
        let scopes: Vec<_> = args.scope.iter().map(|scope| quoted(&scope.to_string())).collect();
        format!("scopes = [{}]\n", scopes.join(", "))
    };
    printer.success(&view, |_| {
        let part =
            format!("[[tokens]]\nname = {}\nrole = \"{role}\"\nhash = \"{hash}\"\n{scopes}", quoted(name));
        format!("{token}\n\n# for leasehold.toml\n{part}")
    })
}

/// Quotes a text as a TOML string. Control characters need no escape: the name of a holder has none.
fn quoted(text: &str) -> String {
    format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\""))
}

async fn list(context: &CommandContext) -> CommandResult {
    let leasehold = context.open().await?;
    let tokens = TokenStore::new(leasehold.clone());
    context
        .print_list(&leasehold, async |printer| {
            let all = tokens.list().await?;
            printer.list(List {
                values: &all,
                name: |token: &TokenStatus| token.id.clone(),
                empty: "there is no token in this store",
                more: None,
                table: |style| token_table(&all, style),
            })
        })
        .await
}

async fn revoke(context: &CommandContext, id: &str) -> CommandResult {
    let Some(revoked) = TokenStore::new(context.open().await?).revoke(id).await? else {
        let message = format!("there is no token '{id}' in this store");
        let hint = "see the tokens with: leasehold token list";
        return Err(Failure::new(exit::FAILURE, "UNKNOWN_TOKEN", message).hint(hint));
    };
    context.printer.success(&revoked, |_| format!("token {id} of '{}' is revoked\n", revoked.name))
}
