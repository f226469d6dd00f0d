//! Settings of a store URL: the query as named, typed values. Unknown, repeated and invalid settings
//! are refused by one text for all engines.

#[cfg(any(feature = "sqlite", feature = "postgres", feature = "dynamodb", feature = "github"))]
use std::time::Duration;

use super::store_url::StoreUrl;
use crate::error::{Error, Result, StoreErrorKind};

/// Settings of a URL, in the order in which they are written.
pub(crate) struct UrlOptions<'a> {
    /// Kind of the store, for messages: `a SQLite store`.
    store: &'static str,
    /// Allowed settings, each as `name=example`.
    allowed: &'static [&'static str],
    given: Vec<(&'a str, &'a str)>,
}

impl<'a> UrlOptions<'a> {
    /// Splits the query. Refuses settings that are unknown or repeated. The error contains only their
    /// names: the value of a mistyped setting may be a secret.
    pub(crate) fn parse(
        url: &'a StoreUrl,
        store: &'static str,
        allowed: &'static [&'static str],
    ) -> Result<Self> {
        let mut options = Self { store, allowed, given: Vec::new() };
        for setting in url.query.split('&').filter(|setting| !setting.is_empty()) {
            let (name, value) = setting.split_once('=').unwrap_or((setting, ""));
            if !allowed.iter().any(|allowed| name_of(allowed) == name) {
                return Err(options.error(format!("unknown setting '{name}' of {store}")));
            }
            if options.given.iter().any(|(earlier, _)| *earlier == name) {
                return Err(options.error(format!("the setting '{name}' of {store} is repeated")));
            }
            options.given.push((name, value));
        }
        Ok(options)
    }

    /// Whether the setting is given.
    #[cfg(any(feature = "postgres", feature = "redis", feature = "http"))]
    pub(crate) fn contains(&self, name: &str) -> bool {
        self.given.iter().any(|(given, _)| *given == name)
    }

    /// Returns the settings with one of these names as they are written, for a driver that parses them.
    #[cfg(feature = "postgres")]
    pub(crate) fn undecoded(&self, names: &[&str]) -> String {
        let chosen =
            self.given.iter().filter(|(name, _)| names.iter().any(|driver| name_of(driver) == *name));
        chosen.map(|(name, value)| format!("{name}={value}")).collect::<Vec<_>>().join("&")
    }

    /// Returns the value of a setting, percent-decoded and not empty.
    pub(crate) fn text(&self, name: &'static str) -> Result<Option<String>> {
        debug_assert!(self.allowed.iter().any(|allowed| name_of(allowed) == name), "{name} is not listed");
        let Some((_, value)) = self.given.iter().find(|(given, _)| *given == name) else { return Ok(None) };
        match decoded(value)? {
            value if value.is_empty() => Err(self.error(format!("the setting '{name}' has no value"))),
            value => Ok(Some(value)),
        }
    }

    /// Returns the value of a setting after `parse`, which returns `None` for an invalid one. `rule`
    /// completes "must be …". The error contains the value: for a secret, use [`text`](Self::text).
    #[cfg(any(
        feature = "sqlite",
        feature = "postgres",
        feature = "redis",
        feature = "dynamodb",
        feature = "github"
    ))]
    pub(crate) fn parsed<T>(
        &self,
        name: &'static str,
        rule: &str,
        parse: impl FnOnce(&str) -> Option<T>,
    ) -> Result<Option<T>> {
        let Some(text) = self.text(name)? else { return Ok(None) };
        let value = parse(&text).ok_or_else(|| {
            self.error(format!(
                "invalid value '{}' of the setting '{name}': must be {rule}",
                text.escape_debug()
            ))
        })?;
        Ok(Some(value))
    }

    #[cfg(any(feature = "postgres", feature = "redis", feature = "http"))]
    pub(crate) fn path(&self, name: &'static str) -> Result<Option<std::path::PathBuf>> {
        Ok(self.text(name)?.map(Into::into))
    }

    /// Returns a duration of at least `min`.
    #[cfg(any(feature = "sqlite", feature = "postgres", feature = "dynamodb", feature = "github"))]
    pub(crate) fn duration(&self, name: &'static str, min: Duration) -> Result<Option<Duration>> {
        let limit = if min.is_zero() { String::new() } else { format!(", at least {min:?}") };
        let parse = |text: &str| crate::model::parse_duration(text).ok().filter(|duration| *duration >= min);
        self.parsed(name, &format!("a duration such as 500ms, 30s or 10m{limit}"), parse)
    }

    /// Returns a number within the range.
    #[cfg(any(feature = "postgres", feature = "redis"))]
    pub(crate) fn integer(
        &self,
        name: &'static str,
        range: std::ops::RangeInclusive<u32>,
    ) -> Result<Option<u32>> {
        let rule = format!("a whole number from {} to {}", range.start(), range.end());
        self.parsed(name, &rule, |text| text.parse().ok().filter(|number| range.contains(number)))
    }

    /// Returns the value that one of these words stands for.
    #[cfg(any(feature = "sqlite", feature = "postgres", feature = "dynamodb", feature = "github"))]
    pub(crate) fn choice<T: Copy>(&self, name: &'static str, words: &[(&str, T)]) -> Result<Option<T>> {
        let rule = words.iter().map(|(word, _)| *word).collect::<Vec<_>>().join(" or ");
        self.parsed(name, &rule, |text| words.iter().find(|(word, _)| *word == text).map(|(_, value)| *value))
    }

    /// Returns the comma-separated values of a setting.
    #[cfg(any(feature = "redis", feature = "github"))]
    pub(crate) fn list(&self, name: &'static str) -> Result<Vec<String>> {
        let text = self.text(name)?.unwrap_or_default();
        Ok(text.split(',').filter(|item| !item.is_empty()).map(str::to_owned).collect())
    }

    /// Returns an error about the settings, with the allowed ones as its hint.
    pub(crate) fn error(&self, message: impl Into<String>) -> Error {
        let hint = format!("the settings of {} are {}", self.store, self.allowed.join(", "));
        Error::store(StoreErrorKind::Misconfigured, message, hint)
    }
}

/// Returns the name of `name=example`.
fn name_of(allowed: &str) -> &str {
    allowed.split('=').next().unwrap_or(allowed)
}

/// Decodes the percent-escapes of a part of a URL, such as `%40`. The error does not contain the
/// text: it may be a password.
pub(crate) fn decoded(text: &str) -> Result<String> {
    let decoded = percent_encoding::percent_decode_str(text).decode_utf8();
    let not_text = |_| {
        let message = "a %-escape in the URL is not UTF-8";
        Error::store(StoreErrorKind::Misconfigured, message, "write it as %XX of UTF-8")
    };
    decoded.map(std::borrow::Cow::into_owned).map_err(not_text)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALLOWED: [&str; 3] = ["busy=5s", "mode=fast|safe", "name=TEXT"];

    fn error(query: &str, read: impl Fn(&UrlOptions<'_>) -> Result<()>) -> String {
        let url = StoreUrl::parse(&format!("memory:?{query}")).unwrap();
        let error = UrlOptions::parse(&url, "a test store", &ALLOWED).and_then(|options| read(&options));
        let error = error.unwrap_err();
        assert_eq!(error.code(), "STORE_MISCONFIGURED");
        format!("{error}; {}", error.hint().unwrap_or_default())
    }

    #[test]
    fn values_are_decoded_and_typed() {
        let url = StoreUrl::parse("memory:?name=a%26b%3dc&&busy=250ms&mode=safe").unwrap();
        let options = UrlOptions::parse(&url, "a test store", &ALLOWED).unwrap();
        assert_eq!(options.text("name").unwrap().as_deref(), Some("a&b=c"));
        assert_eq!(options.duration("busy", Duration::ZERO).unwrap(), Some(Duration::from_millis(250)));
        assert_eq!(options.choice("mode", &[("fast", 1), ("safe", 2)]).unwrap(), Some(2));
        let none = StoreUrl::parse("memory:").unwrap();
        assert_eq!(UrlOptions::parse(&none, "a test store", &ALLOWED).unwrap().text("name").unwrap(), None);
    }

    #[test]
    fn unknown_and_repeated_settings_are_refused_with_the_allowed_ones() {
        let hint = "the settings of a test store are busy=5s, mode=fast|safe, name=TEXT";
        let unknown = format!("unknown setting 'nam' of a test store; {hint}");
        assert_eq!(error("nam=s3cr3t", |_| Ok(())), unknown);
        let repeated = format!("the setting 'name' of a test store is repeated; {hint}");
        assert_eq!(error("name=a&name=s3cr3t", |_| Ok(())), repeated);
    }

    #[test]
    fn an_invalid_value_is_refused_with_the_rule() {
        let read = |options: &UrlOptions<'_>| {
            options.text("name")?;
            options.choice("mode", &[("fast", 1), ("safe", 2)])?;
            options.duration("busy", Duration::from_millis(10)).map(drop)
        };
        assert!(
            error("mode=slow", read)
                .starts_with("invalid value 'slow' of the setting 'mode': must be fast or safe;")
        );
        for (query, text) in [
            ("name=", "the setting 'name' has no value"),
            ("name", "the setting 'name' has no value"),
            ("busy=never", "must be a duration such as 500ms, 30s or 10m, at least 10ms"),
            ("busy=1ms", "invalid value '1ms' of the setting 'busy'"),
            ("name=%ff", "a %-escape in the URL is not UTF-8"),
        ] {
            assert!(error(query, read).contains(text), "{query}: {}", error(query, read));
        }
    }
}
