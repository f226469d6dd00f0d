//! The text of a version, in pieces that every engine takes: a `DynamoDB` item has at most 400 KB.

use leasehold::Result;
use leasehold::model::Ttl;
use leasehold::store::{BACK_ROOM, DocStore, Draft, PutIf};

use super::head::{Version, broken};

const PIECE: usize = 256 * 1024;
/// So many are read at once: `DynamoDB` answers with 16 MB at most.
const AT_ONCE: usize = 32;

/// Writes the pieces; gives the versions of their documents. What is written here is seen by nobody until a head names it.
pub(super) async fn write(docs: &dyn DocStore, state: &str, id: &str, text: &str) -> Result<Vec<u64>> {
    let mut versions = Vec::new();
    for (number, piece) in split(text).enumerate() {
        let draft = Draft { body: piece.to_owned(), facts: Vec::new(), keep: None };
        match docs.put_if(&key(state, id, number), None, draft).await? {
            PutIf::Written(version) => versions.push(version),
            // Sent twice by a driver that had lost the answer.
            PutIf::Clash(Some(doc)) if doc.body == piece => versions.push(doc.version),
            PutIf::Clash(_) => return Err(broken("a new version has the id of another")),
        }
    }
    Ok(versions)
}

/// The text of a version.
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

/// Lets the pieces of a version go. If that fails they only take up room.
pub(super) async fn forget(docs: &dyn DocStore, state: &str, version: &Version) {
    for (number, piece) in version.pieces.iter().enumerate() {
        let nothing = Draft { body: String::new(), facts: Vec::new(), keep: Some(Ttl::MIN) };
        if let Err(error) = docs.put_if(&key(state, &version.id, number), Some(*piece), nothing).await {
            tracing::warn!(state, %error, "a piece of an old Terraform state stays");
        }
    }
}

fn key(state: &str, id: &str, number: usize) -> String {
    // The id first: it has no '/', so that no name of a state can be mistaken for another's pieces.
    format!("{BACK_ROOM}server/tf-piece/{id}/{number:04}/{state}")
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
