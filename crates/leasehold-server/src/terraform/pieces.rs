//! Text of a version, split into pieces that fit every engine: a `DynamoDB` item has at most 400 KB.

use leasehold::Result;
use leasehold::model::Ttl;
use leasehold::store::{DocStore, NewDocument, PutIf, RESERVED_PREFIX};

use super::head::{Version, broken};

const PIECE: usize = 256 * 1024;
/// Maximum number of pieces per read: a `DynamoDB` response has at most 16 MB.
const AT_ONCE: usize = 32;

/// Writes the pieces and returns the versions of their documents. No reader sees the pieces until a
/// head names them.
pub(super) async fn write(docs: &dyn DocStore, state: &str, id: &str, text: &str) -> Result<Vec<u64>> {
    let mut versions = Vec::new();
    for (number, piece) in split(text).enumerate() {
        let draft = NewDocument { body: piece.to_owned(), facts: Vec::new(), keep: None };
        match docs.put_if(&key(state, id, number), None, draft).await? {
            PutIf::Written(version) => versions.push(version),
            // A retry by a driver that did not receive the response.
            PutIf::Conflict(Some(doc)) if doc.body == piece => versions.push(doc.version),
            PutIf::Conflict(_) => return Err(broken("a new version has the id of another")),
        }
    }
    Ok(versions)
}

/// Returns the text of a version.
pub(super) async fn read(docs: &dyn DocStore, state: &str, version: &Version) -> Result<String> {
    let mut text = String::with_capacity(usize::try_from(version.bytes).unwrap_or(0));
    let keys: Vec<_> = (0..version.pieces.len()).map(|number| key(state, &version.id, number)).collect();
    for keys in keys.chunks(AT_ONCE) {
        for doc in docs.get_all(keys).await? {
            text.push_str(&doc.ok_or_else(|| broken("a piece is missing"))?.body);
        }
    }
    if text.len() as u64 == version.bytes { Ok(text) } else { Err(broken("its length is wrong")) }
}

/// Deletes the pieces of a version. On failure the pieces remain and only use space.
pub(super) async fn forget(docs: &dyn DocStore, state: &str, version: &Version) {
    for (number, piece) in version.pieces.iter().enumerate() {
        let nothing = NewDocument { body: String::new(), facts: Vec::new(), keep: Some(Ttl::MIN) };
        if let Err(error) = docs.put_if(&key(state, &version.id, number), Some(*piece), nothing).await {
            tracing::warn!(state, %error, "a piece of an old Terraform state stays");
        }
    }
}

fn key(state: &str, id: &str, number: usize) -> String {
    // The id comes first and contains no '/', so no state name can produce the key of another state's piece.
    format!("{RESERVED_PREFIX}server/tf-piece/{id}/{number:04}/{state}")
}

fn split(text: &str) -> impl Iterator<Item = &str> {
    let mut rest = text;
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        let (piece, after) = rest.split_at(rest.floor_char_boundary(PIECE));
        rest = after;
        Some(piece)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_are_small_and_make_the_whole() {
        let text = "ä€x".repeat(PIECE / 3);
        let pieces: Vec<_> = split(&text).collect();
        assert!(pieces.len() > 1 && pieces.iter().all(|piece| piece.len() <= PIECE && !piece.is_empty()));
        assert_eq!(pieces.concat(), text);
        assert_eq!(split("").count(), 0);
    }
}
