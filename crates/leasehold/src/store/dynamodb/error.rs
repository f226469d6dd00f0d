//! Maps DynamoDB errors to store errors.

use std::error::Error as StdError;

use aws_sdk_dynamodb::error::{BuildError, ProvideErrorMetadata, SdkError};

use crate::error::{Error, StoreErrorKind, StoreRemedy};

/// Cause as far as it may be shown: the response to a rejected signature contains the signed data.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct Cause(String);

/// Converts an SDK error into a store error that names the table, the problem and the remedy.
pub(super) fn explain<E, R>(table: &str, error: &SdkError<E, R>) -> Error
where
    E: StdError + ProvideErrorMetadata + Send + Sync + 'static,
    R: std::fmt::Debug + Send + Sync + 'static,
{
    let code = error.code().unwrap_or_default().to_owned();
    let (kind, what, hint) = match error {
        SdkError::ServiceError(_) => service(&code, error.message().unwrap_or_default()),
        SdkError::TimeoutError(_) => (
            StoreErrorKind::Unavailable,
            "did not answer in time",
            "try again; check the network and the state of the service",
        ),
        // There were credentials when the store was opened. If they cannot be loaded again, that may be
        // temporary, and must not end a lease.
        _ if is_credentials_error(error) => (
            StoreErrorKind::Unavailable,
            "cannot be reached: the AWS credentials cannot be loaded again",
            NO_CREDENTIALS,
        ),
        SdkError::ConstructionFailure(_) => (
            StoreErrorKind::Misconfigured,
            "cannot be used with these settings",
            "check the region, the endpoint and the AWS configuration files",
        ),
        SdkError::DispatchFailure(_) => (
            StoreErrorKind::Unavailable,
            "cannot be reached",
            "try again; check the network, the region and the endpoint",
        ),
        _ => (
            StoreErrorKind::Unavailable,
            "sent a response that cannot be read",
            "try again; check whether the endpoint is DynamoDB",
        ),
    };
    let is_missing = code == NO_TABLE;
    let cause = match error {
        SdkError::ServiceError(_) if code.contains("Signature") => code,
        SdkError::ServiceError(_) => {
            let message = error.message().unwrap_or_default().lines().next().unwrap_or_default().to_owned();
            format!("{code}: {message}")
        }
        _ => chain(error),
    };
    let error =
        Error::store(kind, format!("the DynamoDB table '{table}' {what}"), hint).because(Cause(cause));
    if is_missing { error.with_remedy(StoreRemedy::CreateTable) } else { error }
}

pub(super) const NO_CREDENTIALS: &str =
    "set AWS_PROFILE, or AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or give this machine a role";

/// Returns the error for a request that the SDK rejects.
pub(super) fn malformed(error: BuildError) -> Error {
    Error::store(StoreErrorKind::Broken, "a request cannot be built", "please report this").because(error)
}

pub(super) fn is_denied<E: ProvideErrorMetadata, R>(error: &SdkError<E, R>) -> bool {
    error.code().is_some_and(|code| code.contains("AccessDenied"))
}

/// Code of the error for a table that does not exist.
const NO_TABLE: &str = "ResourceNotFoundException";

fn service(code: &str, message: &str) -> (StoreErrorKind, &'static str, &'static str) {
    match code {
        NO_TABLE => (
            StoreErrorKind::Misconfigured,
            "does not exist",
            "create it, or check the region and the account",
        ),
        "AccessDeniedException" | "AccessDenied" => (
            StoreErrorKind::NotPermitted,
            "denies access to these credentials",
            "grant the permissions in docs/engines/dynamodb.md",
        ),
        "UnrecognizedClientException"
        | "InvalidClientTokenId"
        | "InvalidSignatureException"
        | "IncompleteSignatureException"
        | "IncompleteSignature"
        | "SignatureDoesNotMatch"
        | "MissingAuthenticationTokenException"
        | "MissingAuthenticationToken"
        | "OptInRequired"
        | "InvalidAccessKeyId" => (
            StoreErrorKind::NotPermitted,
            "rejected these credentials",
            "check AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_SESSION_TOKEN and AWS_PROFILE",
        ),
        "ExpiredTokenException" | "ExpiredToken" | "RequestExpired" => {
            (StoreErrorKind::NotPermitted, "rejected these credentials: they have expired", "log in again")
        }
        "ProvisionedThroughputExceededException"
        | "ThrottlingException"
        | "Throttling"
        | "ThrottledException"
        | "RequestLimitExceeded"
        | "LimitExceededException" => (
            StoreErrorKind::Unavailable,
            "received more requests than its capacity allows",
            "try again later; switch the table to on-demand billing, or give it more capacity",
        ),
        "ResourceInUseException" => {
            (StoreErrorKind::Unavailable, "is being changed", "try again in a minute")
        }
        "ValidationException" if message.contains("size") => (
            StoreErrorKind::Unavailable,
            "cannot store a lock of more than 400 KB",
            "allow fewer waiters and holders, or use less metadata",
        ),
        "ValidationException" => (
            StoreErrorKind::Misconfigured,
            "is not a table of leasehold: it has a different key",
            "use a separate table for leasehold",
        ),
        "KMSAccessDeniedException" | "KMSDisabledException" | "KMSInvalidStateException" => (
            StoreErrorKind::NotPermitted,
            "is encrypted with a key that cannot be used",
            "allow these credentials to use the table's KMS key",
        ),
        // All other errors are treated as temporary problems of the service.
        _ => (StoreErrorKind::Unavailable, "has a problem", "try again; check the state of the service"),
    }
}

/// Whether the request failed while looking for credentials.
fn is_credentials_error(error: &(dyn StdError + 'static)) -> bool {
    causes(error).any(|cause| {
        let text = cause.to_string();
        text.contains("credential") || text.contains("no identity") || text.contains("identity resolver")
    })
}

/// Returns the text of an error and its causes, without repetitions.
pub(super) fn chain(error: &(dyn StdError + 'static)) -> String {
    let mut parts: Vec<String> = Vec::new();
    for cause in causes(error) {
        let text = cause.to_string();
        if !parts.iter().any(|part| part.contains(&text)) {
            parts.push(text);
        }
    }
    parts.join(": ")
}

fn causes<'a>(error: &'a (dyn StdError + 'static)) -> impl Iterator<Item = &'a (dyn StdError + 'static)> {
    std::iter::successors(Some(error), |error| StdError::source(*error))
}

/// Returns an error with the given cause, for cases without an `SdkError`.
pub(super) fn with_cause(
    kind: StoreErrorKind,
    message: String,
    hint: &str,
    source: &(dyn StdError + 'static),
) -> Error {
    Error::store(kind, message, hint).because(Cause(chain(source)))
}

#[cfg(test)]
mod tests {
    use aws_sdk_dynamodb::operation::put_item::PutItemError;

    use super::*;

    #[test]
    fn credentials_that_cannot_be_loaded_again_are_a_temporary_problem() {
        let cause = "an error occurred while loading credentials";
        let error = explain("t", &SdkError::<PutItemError, ()>::construction_failure(cause));
        assert!(error.is_retryable(), "{error}");
        let error = explain("t", &SdkError::<PutItemError, ()>::construction_failure("no such region"));
        assert!(!error.is_retryable(), "{error}");
    }
}
