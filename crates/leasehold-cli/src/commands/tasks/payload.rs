//! Sources of payloads: the command line, a file, stdin.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use leasehold::model::{MAX_PAYLOAD, Payload, ValidationError};

use crate::cli::PayloadSource;
use crate::output::{Failure, visible};

/// Reads the payload from its source.
pub(in crate::commands) fn read(source: Option<PayloadSource>) -> Result<Payload, Failure> {
    match source {
        None => Ok(Payload::default()),
        Some(PayloadSource::Inline(payload)) => Ok(payload),
        Some(PayloadSource::Stdin) => read_all("stdin", io::stdin().lock()),
        Some(PayloadSource::File(path)) => read_all(&display_path(&path), open(&path)?),
    }
}

pub(super) fn open(path: &Path) -> Result<File, Failure> {
    File::open(path).map_err(|error| unreadable(&display_path(path), &error))
}

pub(super) fn unreadable(name: &str, error: &io::Error) -> Failure {
    Failure::usage(format!("{name} cannot be read: {error}"))
}

pub(super) fn display_path(path: &Path) -> String {
    format!("file '{}'", visible(&path.to_string_lossy()))
}

/// Reads the whole input, up to the maximum size of a payload.
fn read_all(name: &str, from: impl Read) -> Result<Payload, Failure> {
    let mut text = Vec::new();
    let limit = MAX_PAYLOAD as u64 + 1;
    from.take(limit).read_to_end(&mut text).map_err(|error| unreadable(name, &error))?;
    parse(&text).map_err(|ValidationError(wrong)| ValidationError(format!("{name}: {wrong}")).into())
}

/// Parses a payload. Surrounding whitespace is dropped: the same payload has the same fingerprint
/// whatever its source.
pub(super) fn parse(text: &[u8]) -> Result<Payload, ValidationError> {
    if text.len() > MAX_PAYLOAD {
        return Err(ValidationError(format!("the payload is too large; {MAX_PAYLOAD} bytes is the most")));
    }
    let text = str::from_utf8(text).map_err(|_| ValidationError("the payload is not UTF-8".to_owned()))?;
    Payload::new(text.trim())
}
