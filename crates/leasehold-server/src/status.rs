//! Mapping of problem codes to HTTP statuses. Only this file names statuses.

use axum::http::StatusCode;

#[derive(Debug, Clone, Copy)]
pub(crate) struct Kind {
    pub(crate) code: &'static str,
    pub(crate) status: StatusCode,
    pub(crate) title: &'static str,
}

pub(crate) const OK: StatusCode = StatusCode::OK;
pub(crate) const CREATED: StatusCode = StatusCode::CREATED;
pub(crate) const ACCEPTED: StatusCode = StatusCode::ACCEPTED;
/// Redirect after a form of the dashboard: the browser loads the next page with GET.
pub(crate) const SEE_OTHER: StatusCode = StatusCode::SEE_OTHER;
pub(crate) const NOT_MODIFIED: StatusCode = StatusCode::NOT_MODIFIED;

/// Status that Terraform expects if another client holds the lock.
pub(crate) const LOCKED: StatusCode = StatusCode::LOCKED;
/// Status of an unlock if another client holds the lock.
pub(crate) const CONFLICT: StatusCode = StatusCode::CONFLICT;

/// Kinds of all codes. The codes of library errors also have a paragraph in `docs/errors.md`.
pub(crate) const KINDS: [Kind; 36] = [
    kind("INVALID", StatusCode::BAD_REQUEST, "Invalid request"),
    kind("UNAUTHENTICATED", StatusCode::UNAUTHORIZED, "Not authenticated"),
    kind("BAD_SIGNATURE", StatusCode::UNAUTHORIZED, "Bad signature"),
    kind("FORBIDDEN", StatusCode::FORBIDDEN, "Not allowed"),
    kind("UNKNOWN_PATH", StatusCode::NOT_FOUND, "No such path"),
    kind("UNKNOWN_TASK", StatusCode::NOT_FOUND, "No such task"),
    kind("UNKNOWN_QUEUE", StatusCode::NOT_FOUND, "No such queue"),
    kind("UNKNOWN_SCHEDULE", StatusCode::NOT_FOUND, "No such schedule"),
    kind("UNKNOWN_EXECUTION", StatusCode::NOT_FOUND, "No such execution"),
    kind("UNKNOWN_WORKFLOW", StatusCode::NOT_FOUND, "No such workflow"),
    kind("UNKNOWN_TRIGGER", StatusCode::NOT_FOUND, "No such trigger"),
    kind("UNKNOWN_STATE", StatusCode::NOT_FOUND, "No such Terraform state"),
    kind("LOCK_NOT_HELD", StatusCode::NOT_FOUND, "Lock not held"),
    kind("METHOD_NOT_ALLOWED", StatusCode::METHOD_NOT_ALLOWED, "Method not allowed"),
    kind("TOO_SLOW", StatusCode::REQUEST_TIMEOUT, "Request too slow"),
    kind("LATE", StatusCode::REQUEST_TIMEOUT, "Request arrived too late"),
    kind("PROTOCOL", StatusCode::BAD_REQUEST, "Unsupported protocol version"),
    kind("LOCK_CONFLICT", StatusCode::CONFLICT, "Lock held by another holder"),
    kind("DEADLOCK", StatusCode::CONFLICT, "The wait would not end"),
    kind("STALE_TOKEN", StatusCode::CONFLICT, "Stale token"),
    kind("LEASE_LOST", StatusCode::CONFLICT, "Lease lost"),
    kind("LOCK_QUEUE_FULL", StatusCode::CONFLICT, "Lock queue is full"),
    kind("TASK_STATE", StatusCode::CONFLICT, "Not possible in this state"),
    kind("WORKFLOW_LOCKED", StatusCode::CONFLICT, "Workflow currently executing"),
    kind("LOCK_ACQUISITION_FAILED", StatusCode::CONFLICT, "Concurrent execution attempted"),
    kind("EXECUTION_FINISHED", StatusCode::CONFLICT, "Execution finished"),
    kind("VERSION_CONFLICT", StatusCode::PRECONDITION_FAILED, "Version changed"),
    kind("TOO_LARGE", StatusCode::PAYLOAD_TOO_LARGE, "Body too large"),
    kind("NOT_JSON", StatusCode::UNSUPPORTED_MEDIA_TYPE, "Not JSON"),
    kind("IDEMPOTENCY_KEY_REUSED", StatusCode::UNPROCESSABLE_ENTITY, "Key used for something else"),
    kind("KEY_REUSED", StatusCode::UNPROCESSABLE_ENTITY, "Key used for something else"),
    kind("RATE_LIMITED", StatusCode::TOO_MANY_REQUESTS, "Too many requests"),
    kind("NOT_SUPPORTED", StatusCode::NOT_IMPLEMENTED, "Not supported by this store"),
    kind("DRAINING", StatusCode::SERVICE_UNAVAILABLE, "Server is stopping"),
    kind("STORE_UNAVAILABLE", StatusCode::SERVICE_UNAVAILABLE, "Store unavailable"),
    // Also used for every code that is not listed: an error of the server or of its settings, not
    // of the request.
    kind("INTERNAL", StatusCode::INTERNAL_SERVER_ERROR, "Internal error"),
];

const fn kind(code: &'static str, status: StatusCode, title: &'static str) -> Kind {
    Kind { code, status, title }
}

/// Returns the kind of a code; unknown codes map to the last entry.
pub(crate) fn of(code: &str) -> Kind {
    let known = KINDS.iter().find(|kind| kind.code == code);
    *known.unwrap_or(&KINDS[KINDS.len() - 1])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unlisted_code_is_an_internal_error() {
        assert_eq!(of("STORE_BROKEN").status, StatusCode::INTERNAL_SERVER_ERROR);
        assert_eq!(of("LOCK_CONFLICT").status, StatusCode::CONFLICT);
    }

    #[test]
    fn codes_are_unique() {
        let mut codes: Vec<_> = KINDS.iter().map(|kind| kind.code).collect();
        codes.sort_unstable();
        codes.dedup();
        assert_eq!(codes.len(), KINDS.len());
    }
}
