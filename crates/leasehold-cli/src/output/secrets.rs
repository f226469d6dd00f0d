//! Redaction of passwords: the printable form of a store's URL, and a last filter before an error is printed.

use leasehold::store::StoreUrl;

/// Returns the printable form of a store's URL. In a URL that cannot be parsed the position of
/// secrets is unknown, so only its scheme is shown.
pub(crate) fn redacted_url(url: &str) -> String {
    match (StoreUrl::parse(url), url.split_once(':')) {
        (Ok(url), _) => url.to_string(),
        (Err(_), Some((scheme, _))) => format!("{scheme}:…"),
        (Err(_), None) => url.to_owned(),
    }
}

/// Whether a URL has secrets, or may have some because it cannot be parsed.
pub(crate) fn has_secrets(url: &str) -> bool {
    let shown = redacted_url(url);
    shown != url && (shown.contains("***") || shown.ends_with('…'))
}

/// Redacts passwords: that of a `scheme://user:password@host` in the text, and the value of a setting whose
/// name ends like one. Drivers and the command line parser quote input that they cannot parse.
pub(super) fn redact(text: &str) -> String {
    redact_settings(&redact_userinfo(text))
}

fn redact_userinfo(text: &str) -> String {
    let mut redacted = String::with_capacity(text.len());
    let mut rest = text;
    while let Some((before, after)) = rest.split_once("://") {
        redacted += before;
        redacted += "://";
        let end = after.find(|c: char| c.is_whitespace() || "\"'`/?#".contains(c)).unwrap_or(after.len());
        // A password may contain a character that ends the host: then the next '@' of the same word
        // ends the password.
        let word = after.find(|c: char| c.is_whitespace() || "\"`".contains(c)).unwrap_or(after.len());
        let sign = after[..end].rfind('@').or_else(|| after[..word].find('@'));
        rest = match (after.find(':'), sign) {
            // In a web address the token is the user name.
            (_, Some(sign)) if is_web(before) && sign < end && &after[..sign] != PLACEHOLDER => {
                redacted += "***";
                &after[sign..]
            }
            (Some(colon), Some(sign)) if colon < sign && colon < end => {
                redacted += &after[..=colon];
                redacted += "***";
                &after[sign..]
            }
            _ => after,
        };
    }
    redacted + rest
}

/// Placeholder that hints use for a token.
const PLACEHOLDER: &str = "TOKEN";

fn is_web(before: &str) -> bool {
    let before = before.to_ascii_lowercase();
    before.ends_with("http") || before.ends_with("https")
}

fn redact_settings(text: &str) -> String {
    let mut redacted = String::with_capacity(text.len());
    let mut rest = text;
    while let Some((before, after)) = rest.split_once('=') {
        redacted += before;
        redacted.push('=');
        let name = before.to_ascii_lowercase();
        rest = after;
        if ["password", "secret"].iter().any(|secret| name.ends_with(secret)) {
            let end = after.find(|c: char| c.is_whitespace() || "\"'`&".contains(c)).unwrap_or(after.len());
            redacted += "***";
            rest = &after[end..];
        }
    }
    redacted + rest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_shown_without_its_password() {
        assert_eq!(redacted_url("postgres://ada:s3cr3t@h/db"), "postgres://ada:***@h/db");
        assert_eq!(redacted_url("mysql://ada:s3cr3t@h/db"), "mysql:…");
        assert_eq!(redacted_url("/tmp/x.db"), "/tmp/x.db");
    }

    #[test]
    fn a_text_is_shown_without_its_passwords() {
        let redacted = redact;
        assert_eq!(redacted("no such 'mysql://ada:s3cr3t@h/a@b'."), "no such 'mysql://ada:***@h/a@b'.");
        assert_eq!(redacted("a://u:p/w@h and b://:q@i"), "a://u:***@h and b://:***@i");
        assert_eq!(redacted("'https://lh_s3cr3t@h/' and HTTP://u:p@h"), "'https://***@h/' and HTTP://***@h");
        for same in [
            "",
            "x://",
            "or write https://TOKEN@HOST",
            "http://h:80/a",
            "http://h:80/ it is",
            "x://ada@h/",
            "sqlite:a@b:c",
            "é://é",
        ] {
            assert_eq!(redacted(same), same);
        }
    }
}
