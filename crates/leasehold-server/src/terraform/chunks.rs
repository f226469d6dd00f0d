//! Text of a version, split into chunks that fit every engine: a `DynamoDB` item has at most 400 KB.

use leasehold::Result;
use leasehold::model::Ttl;
use leasehold::store::{DocStore, NewDocument, PutIf, RESERVED_PREFIX};

use super::state_index::{Version, broken};

const CHUNK_BYTES: usize = 256 * 1024;
/// Maximum number of chunks per read: a `DynamoDB` response has at most 16 MB.
const CHUNKS_PER_READ: usize = 32;

/// Writes the chunks and returns the versions of their documents. No reader sees the chunks until an
/// index names them.
pub(super) async fn write(docs: &dyn DocStore, state: &str, id: &str, text: &str) -> Result<Vec<u64>> {
    let mut versions = Vec::new();
    for (number, chunk) in split(text).enumerate() {
        let document = NewDocument { body: chunk.to_owned(), facts: Vec::new(), keep: None };
        match docs.put_if(&key(state, id, number), None, document).await? {
            PutIf::Written(version) => versions.push(version),
            // A retry by a driver that did not receive the response.
            PutIf::Conflict(Some(doc)) if doc.body == chunk => versions.push(doc.version),
            PutIf::Conflict(_) => return Err(broken("a new version has the id of an existing version")),
        }
    }
    Ok(versions)
}

/// Returns the text of a version.
pub(super) async fn read(docs: &dyn DocStore, state: &str, version: &Version) -> Result<String> {
    let mut text = String::with_capacity(usize::try_from(version.bytes).unwrap_or(0));
    let keys: Vec<_> = (0..version.chunks.len()).map(|number| key(state, &version.id, number)).collect();
    for keys in keys.chunks(CHUNKS_PER_READ) {
        for doc in docs.get_all(keys).await? {
            text.push_str(&doc.ok_or_else(|| broken("a chunk is missing"))?.body);
        }
    }
    if text.len() as u64 == version.bytes { Ok(text) } else { Err(broken("the length does not match")) }
}

/// Deletes the chunks of a version. On failure the chunks remain and only use space.
pub(super) async fn delete(docs: &dyn DocStore, state: &str, version: &Version) {
    for (number, chunk) in version.chunks.iter().enumerate() {
        let nothing = NewDocument { body: String::new(), facts: Vec::new(), keep: Some(Ttl::MIN) };
        if let Err(error) = docs.put_if(&key(state, &version.id, number), Some(*chunk), nothing).await {
            tracing::warn!(state, %error, "failed to delete a chunk of an old Terraform state");
        }
    }
}

fn key(state: &str, id: &str, number: usize) -> String {
    // The id comes first and contains no '/', so no state name can produce the key of another
    // state's chunk.
    format!("{RESERVED_PREFIX}server/tf-piece/{id}/{number:04}/{state}")
}

fn split(text: &str) -> impl Iterator<Item = &str> {
    let mut rest = text;
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        let (chunk, after) = rest.split_at(rest.floor_char_boundary(CHUNK_BYTES));
        rest = after;
        Some(chunk)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_are_small_and_join_to_the_whole_text() {
        let text = "ä€x".repeat(CHUNK_BYTES / 3);
        let chunks: Vec<_> = split(&text).collect();
        assert!(
            chunks.len() > 1 && chunks.iter().all(|chunk| chunk.len() <= CHUNK_BYTES && !chunk.is_empty())
        );
        assert_eq!(chunks.concat(), text);
        assert_eq!(split("").count(), 0);
    }
}
