//! Sources of payloads: the command line, a file, stdin.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use leasehold::model::{MAX_PAYLOAD, Payload, ValidationError};

use crate::cli::Source;
use crate::output::{Failure, visible};

/// Reads the payload from its source.
pub(in crate::commands) fn read(source: Option<Source>) -> Result<Payload, Failure> {
    match source {
        None => Ok(Payload::default()),
        Some(Source::Inline(payload)) => Ok(payload),
        Some(Source::Stdin) => whole("stdin", io::stdin().lock()),
        Some(Source::File(path)) => whole(&shown(&path), open(&path)?),
    }
}

pub(super) fn open(path: &Path) -> Result<File, Failure> {
    File::open(path).map_err(|error| unreadable(&shown(path), &error))
}

pub(super) fn unreadable(name: &str, error: &io::Error) -> Failure {
    Failure::usage(format!("{name} cannot be read: {error}"))
}

pub(super) fn shown(path: &Path) -> String {
    format!("file '{}'", visible(&path.to_string_lossy()))
}

/// Reads the whole input, up to the maximum size of a payload.
fn whole(name: &str, from: impl Read) -> Result<Payload, Failure> {
    let mut text = Vec::new();
    let most = MAX_PAYLOAD as u64 + 1;
    from.take(most).read_to_end(&mut text).map_err(|error| unreadable(name, &error))?;
    of_bytes(&text).map_err(|ValidationError(wrong)| ValidationError(format!("{name}: {wrong}")).into())
}

/// Parses a payload. Surrounding whitespace is dropped: the same payload has the same fingerprint
/// whatever its source.
pub(super) fn of_bytes(text: &[u8]) -> Result<Payload, ValidationError> {
    if text.len() > MAX_PAYLOAD {
        return Err(ValidationError(format!("the payload is too large; {MAX_PAYLOAD} bytes is the most")));
    }
    let text = str::from_utf8(text).map_err(|_| ValidationError("the payload is not UTF-8".to_owned()))?;
    Payload::new(text.trim())
}
