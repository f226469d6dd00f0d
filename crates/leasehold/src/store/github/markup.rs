//! Text of comments and issues: hidden JSON, and words that GitHub must not interpret.

use serde::{Deserialize, Serialize};

const END: &str = " -->";

/// Serializes a value as JSON that people do not see, after a start marker such as `<!-- name`. Escapes
/// `<` and `>`, so that no content can end the HTML comment.
pub(super) fn embed_json(begin: &str, value: &impl Serialize) -> String {
    let json = serde_json::to_string(value).expect("the value is plain data");
    let json = json.replace('<', "\\u003c").replace('>', "\\u003e");
    format!("{begin}{json}{END}")
}

/// Parses what [`embed_json`] has written; `None` if the text does not contain it.
pub(super) fn extract_json<T: for<'de> Deserialize<'de>>(
    begin: &str,
    body: &str,
) -> Option<Result<T, serde_json::Error>> {
    let (_, rest) = body.split_once(begin.trim_end())?;
    let json = rest.split_once(END.trim_start()).map_or(rest, |(json, _)| json);
    Some(serde_json::from_str(json.trim()))
}

/// Formats text as code, so that GitHub notifies no user if a holder is called `@ada`.
pub(super) fn code(text: &(impl std::fmt::Display + ?Sized)) -> String {
    format!("`{}`", text.to_string().replace('`', "'").replace("<!--", "<! --"))
}
