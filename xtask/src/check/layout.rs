//! Layout of the library: its engines, and the names that `lib.rs` exports.

use std::collections::{BTreeMap, BTreeSet};

use super::paths::{Mention, mentions};
use super::source::Source;

pub(super) const LIBRARY: &str = "crates/leasehold/src";
pub(super) const STORE: &str = "crates/leasehold/src/store";

/// Folders of `store/` that all engines use; any other folder there counts as an engine.
const SHARED: [&str; 4] = ["cas", "instrumented", "support", "traits"];

/// Engines and exports of the library.
pub(super) struct Layout {
    /// Folders of `store/` that are engines.
    pub(super) engines: BTreeSet<String>,
    /// Names that `lib.rs` exports, and the layer of each.
    layer_of: BTreeMap<String, String>,
}

impl Layout {
    pub(super) fn of(sources: &[Source]) -> Self {
        let engines = sources.iter().filter_map(engine_of).map(str::to_owned).collect();
        let lib = sources.iter().filter(|source| source.path == format!("{LIBRARY}/lib.rs"));
        let layer_of = lib.flat_map(mentions).filter_map(export).collect();
        Self { engines, layer_of }
    }

    /// Whether the path leads to the layer, directly or by a name that `lib.rs` exports.
    pub(super) fn leads_to(&self, mention: &Mention, layer: &str) -> bool {
        let by_name = || mention.segments.get(1).and_then(|name| self.layer_of.get(name));
        mention.is_under(&format!("crate::{layer}"))
            || (mention.is_under("crate") && by_name().is_some_and(|from| from == layer))
    }
}

/// Returns the engine of a file: `crates/leasehold/src/store/sqlite/schema.rs` belongs to `sqlite`.
pub(super) fn engine_of(source: &Source) -> Option<&str> {
    let inside = source.path.strip_prefix(STORE)?.strip_prefix('/')?;
    let (folder, _) = inside.split_once('/')?;
    (!SHARED.contains(&folder)).then_some(folder)
}

/// Returns the name and the layer of an export: `pub use client::Leasehold` exports `Leasehold` from
/// `client`.
fn export(mention: Mention) -> Option<(String, String)> {
    let skip = usize::from(mention.is_under("crate"));
    let mut segments = mention.segments.into_iter().skip(skip);
    let layer = segments.next().filter(|layer| ["model", "store", "client"].contains(&layer.as_str()))?;
    Some((segments.next_back()?, layer))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_engine_is_a_folder_of_its_own() {
        let engine = |path: &str| engine_of(&Source::new(path, "")).map(str::to_owned);
        assert_eq!(engine("crates/leasehold/src/store/sqlite/sql/lock.rs").as_deref(), Some("sqlite"));
        for path in
            ["store/connect.rs", "store/cas/locks.rs", "store/support/wake/waiters.rs", "client/guard/mod.rs"]
        {
            assert_eq!(engine(&format!("{LIBRARY}/{path}")), None, "{path}");
        }
    }

    #[test]
    fn a_name_that_lib_exports_belongs_to_its_layer() {
        let lib =
            "pub use error::Error;\npub use client::{Guard, locks::Lock};\npub use crate::model::Token;\n";
        let layout = Layout::of(&[Source::new("crates/leasehold/src/lib.rs", lib)]);
        let layer = |name: &str| layout.layer_of.get(name).map(String::as_str);
        assert_eq!(["Guard", "Lock"].map(layer), [Some("client"); 2]);
        assert_eq!([layer("Token"), layer("Error")], [Some("model"), None]);
    }
}
