//! Text output of tokens.

use leasehold_server::access::TokenStatus;

use super::style::Style;
use super::table::{Table, Tint, plain};
use super::text::visible;

/// Returns a table with a row for each token.
pub(crate) fn token_table(tokens: &[TokenStatus], style: Style) -> String {
    let mut table = Table::new(&["ID", "NAME", "ROLE", "SCOPES", "CREATED", "ENDS"]);
    for token in tokens {
        let ends = match (&token.revoked_at, &token.expires_at) {
            (Some(revoked), _) => format!("revoked {}", to_the_second(revoked)),
            (None, Some(end)) => to_the_second(end),
            (None, None) => "never".to_owned(),
        };
        let (name, role) = (visible(&token.name), token.role.to_string());
        let reaches = match &token.scopes[..] {
            [] => "everything".to_owned(),
            scopes => visible(&scopes.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ")),
        };
        let row = vec![token.id.clone(), name, role, reaches, to_the_second(&token.created_at), ends];
        let tint: Tint = if token.active { plain } else { Style::warning };
        table.row(tint, row);
    }
    table.render(style)
}

/// Returns a time in RFC 3339 without the fraction of its second.
fn to_the_second(time: &str) -> String {
    time.split_once('.').map_or_else(|| time.to_owned(), |(seconds, _)| format!("{seconds}Z"))
}
