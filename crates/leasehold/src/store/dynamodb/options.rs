//! Parses the store URL into a table and settings.

use std::time::Duration;

use crate::error::{Error, Result, StoreErrorKind};
use crate::store::server_clock::Judge;
use crate::store::support::url::store_url::is_plain_address;
use crate::store::support::url::url_options::UrlOptions;
use crate::store::{Clock, StoreUrl};

/// Table and settings.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct DynamoDbOptions {
    /// Name of the table, or its ARN if it belongs to another account.
    pub table: String,
    /// Region; by default that of the environment or the profile.
    pub region: Option<String>,
    /// Address to use instead of the region's: an emulator or a VPC endpoint.
    pub endpoint: Option<String>,
    /// Profile of the AWS configuration files; by default that of the environment.
    pub profile: Option<String>,
    /// Rule that decides whether a lease has expired.
    pub judge: Judge,
    /// Clock of the engine, for tests.
    #[doc(hidden)]
    pub clock: Option<Clock>,
    /// Whether to observe leases separately from the other stores of this process, as if on another
    /// machine: for tests.
    #[doc(hidden)]
    pub separate_observations: bool,
    pub(super) url: String,
}

const TABLE_VARIABLE: &str = "LEASEHOLD_DYNAMODB_TABLE";
const SETTINGS: [&str; 5] =
    ["region=REGION", "endpoint=http://HOST:PORT", "profile=NAME", "clock=date|watch", "skew=30s"];

impl DynamoDbOptions {
    /// Parses `dynamodb://TABLE?region=…&endpoint=…`; without a table, uses the one that
    /// `LEASEHOLD_DYNAMODB_TABLE` names.
    pub fn from_url(url: &StoreUrl) -> Result<Self> {
        let table = match url.location() {
            "" => std::env::var(TABLE_VARIABLE).unwrap_or_default(),
            name => name.to_owned(),
        };
        let table = checked(table)?;
        let given = UrlOptions::parse(url, "a DynamoDB store", &SETTINGS)?;
        let endpoint = given.text("endpoint")?;
        if endpoint.as_deref().is_some_and(|url| !is_plain_address(url)) {
            return Err(given.error("invalid endpoint: must be http://HOST:PORT or https://HOST"));
        }
        let region = |text: &str| is_region(text).then(|| text.to_owned());
        let skew = given.duration("skew", Duration::ZERO)?;
        let words = [("date", Judge::default()), ("watch", Judge::Watch)];
        let judge = match (given.choice("clock", &words)?.unwrap_or_default(), skew) {
            (Judge::Date { .. }, Some(skew)) => Judge::Date { skew },
            (Judge::Watch, Some(_)) => return Err(given.error("skew= is not allowed with clock=watch")),
            (judge, None) => judge,
        };
        Ok(Self {
            table,
            region: given.parsed("region", "letters, digits and '-'", region)?,
            endpoint,
            profile: given.text("profile")?,
            judge,
            clock: None,
            separate_observations: false,
            url: url.to_string(),
        })
    }
}

fn checked(table: String) -> Result<String> {
    if table.is_empty() {
        let message = "the URL names no DynamoDB table".to_owned();
        let hint = format!("write dynamodb://TABLE, or set {TABLE_VARIABLE}");
        return Err(Error::store(StoreErrorKind::Misconfigured, message, hint));
    }
    let is_arn = table.starts_with("arn:");
    let is_allowed = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c) || (is_arn && ":/".contains(c));
    if !table.chars().all(is_allowed) || !(3..=1024).contains(&table.len()) {
        let message = format!("'{}' is not a valid name of a DynamoDB table", table.escape_debug());
        let hint = "a name has 3 to 255 letters, digits, '-', '_' and '.'; an ARN is allowed too";
        return Err(Error::store(StoreErrorKind::Misconfigured, message, hint));
    }
    Ok(table)
}

fn is_region(text: &str) -> bool {
    text.chars().all(|c| c.is_ascii_alphanumeric() || c == '-')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(url: &str) -> Result<DynamoDbOptions> {
        DynamoDbOptions::from_url(&StoreUrl::parse(url).unwrap())
    }

    #[test]
    fn a_url_names_a_table_and_its_settings() {
        let given =
            options("dynamodb://locks?region=eu-west-1&endpoint=http://127.0.0.1:8000&profile=ops").unwrap();
        assert_eq!(given.table, "locks");
        assert_eq!(given.region.as_deref(), Some("eu-west-1"));
        assert_eq!(given.endpoint.as_deref(), Some("http://127.0.0.1:8000"));
        assert_eq!(given.profile.as_deref(), Some("ops"));
        assert_eq!(given.judge, Judge::Date { skew: Duration::from_secs(30) });
        assert_eq!(options("dynamodb:locks").unwrap().table, "locks");
        let arn = "arn:aws:dynamodb:eu-west-1:123456789012:table/locks";
        assert_eq!(options(&format!("dynamodb://{arn}")).unwrap().table, arn);
    }

    #[test]
    fn the_date_decides_with_a_margin() {
        let judge = |url: &str| options(url).unwrap().judge;
        assert_eq!(judge("dynamodb://locks?clock=date"), Judge::default());
        let five = Judge::Date { skew: Duration::from_secs(5) };
        assert_eq!(judge("dynamodb://locks?clock=date&skew=5s"), five);
        assert_eq!(judge("dynamodb://locks?skew=5s&clock=date"), five);
        assert_eq!(judge("dynamodb://locks?skew=5s"), five);
        assert_eq!(judge("dynamodb://locks?clock=watch"), Judge::Watch);
    }

    #[test]
    fn invalid_urls_are_rejected_without_showing_a_secret() {
        for url in [
            "dynamodb://",
            "dynamodb://a b c",
            "dynamodb://ab",
            "dynamodb://locks/x",
            "dynamodb://locks?clock=sun",
            "dynamodb://locks?clock=watch&skew=5s",
            "dynamodb://locks?clock=date&skew=soon",
            "dynamodb://locks?endpoint=127.0.0.1",
            "dynamodb://locks?endpoint=http://u:s3cr3t@h",
            "dynamodb://locks?aws_secret_access_key=s3cr3t",
            "dynamodb://locks?region=",
            "dynamodb://locks?region=a&region=b",
        ] {
            let error = options(url).unwrap_err();
            assert_eq!(error.code(), "STORE_MISCONFIGURED", "{url}");
            assert!(!format!("{error} {error:?}").contains("s3cr3t"), "{url}");
        }
    }
}
