//! What the rules about layers must know about the library as a whole: its engines, and what `lib.rs` offers.

use std::collections::{BTreeMap, BTreeSet};

use super::paths::{Mention, mentions};
use super::source::Source;

pub(super) const LIBRARY: &str = "crates/leasehold/src";
pub(super) const STORE: &str = "crates/leasehold/src/store";

/// Folders of `store/` that serve every engine; any other folder there is taken for an engine.
const SHARED: [&str; 2] = ["metered", "wake"];

/// The library from above.
pub(super) struct Layout {
    /// The folders of `store/` that are engines.
    pub(super) engines: BTreeSet<String>,
    /// Names that `lib.rs` offers at the top of the crate, and the floor that each comes from.
    floor_of: BTreeMap<String, String>,
}

impl Layout {
    pub(super) fn of(sources: &[Source]) -> Self {
        let engines = sources.iter().filter_map(engine_of).map(str::to_owned).collect();
        let lib = sources.iter().filter(|source| source.path == format!("{LIBRARY}/lib.rs"));
        let floor_of = lib.flat_map(mentions).filter_map(export).collect();
        Self { engines, floor_of }
    }

    /// Whether the path leads to the floor, directly or by a name that `lib.rs` offers.
    pub(super) fn leads_to(&self, mention: &Mention, floor: &str) -> bool {
        let by_name = || mention.segments.get(1).and_then(|name| self.floor_of.get(name));
        mention.is_under(&format!("crate::{floor}"))
            || (mention.is_under("crate") && by_name().is_some_and(|from| from == floor))
    }
}

/// `crates/leasehold/src/store/sqlite/schema.rs` belongs to `sqlite`.
pub(super) fn engine_of(source: &Source) -> Option<&str> {
    let inside = source.path.strip_prefix(STORE)?.strip_prefix('/')?;
    let (folder, _) = inside.split_once('/')?;
    (!SHARED.contains(&folder)).then_some(folder)
}

/// `pub use client::Leasehold` offers Leasehold from client.
fn export(mention: Mention) -> Option<(String, String)> {
    let skip = usize::from(mention.is_under("crate"));
    let mut segments = mention.segments.into_iter().skip(skip);
    let floor = segments.next().filter(|floor| ["model", "store", "client"].contains(&floor.as_str()))?;
    Some((segments.next_back()?, floor))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_engine_is_a_folder_of_its_own() {
        let engine = |path: &str| engine_of(&Source::new(path, "")).map(str::to_owned);
        assert_eq!(engine("crates/leasehold/src/store/sqlite/sql/lock.rs").as_deref(), Some("sqlite"));
        for path in ["store/cas.rs", "store/wake/hub.rs", "client/guard/mod.rs"] {
            assert_eq!(engine(&format!("{LIBRARY}/{path}")), None, "{path}");
        }
    }

    #[test]
    fn a_name_that_lib_offers_belongs_to_its_floor() {
        let lib =
            "pub use error::Error;\npub use client::{Guard, locks::Lock};\npub use crate::model::Token;\n";
        let layout = Layout::of(&[Source::new("crates/leasehold/src/lib.rs", lib)]);
        let floor = |name: &str| layout.floor_of.get(name).map(String::as_str);
        assert_eq!(["Guard", "Lock"].map(floor), [Some("client"); 2]);
        assert_eq!([floor("Token"), floor("Error")], [Some("model"), None]);
    }
}
