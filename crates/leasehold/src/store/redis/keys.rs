//! How names become keys, and which of them live together.
//!
//! `PREFIX:{17}:lock:NAME` is the record of a lock. What the braces hold decides where a Cluster keeps a key, so
//! everything of one bucket is in one place and one script can change it in one step: the records and those who wait
//! (`…:queue:NAME`), `…:names` for listing, `…:due` for sweeping, `…:events` for the history, `…:floor` above the tokens of those that are forgotten. The first brace counts, and
//! the name comes after it: a name may have braces of its own.

use crate::model::LockName;

/// So many buckets there are. Part of the stored format.
pub(super) const BUCKETS: u8 = 64;

/// Makes keys.
pub(super) struct Keys {
    prefix: String,
    buckets: Vec<Bucket>,
}

/// What the locks of one bucket share.
pub(super) struct Bucket {
    /// What the keys of its records begin with.
    records: String,
    /// What the keys of its queues begin with.
    queues: String,
    pub(super) names: String,
    pub(super) due: String,
    pub(super) events: String,
    /// Above every token of a lock of this bucket that is forgotten.
    pub(super) floor: String,
}

impl Keys {
    pub(super) fn new(prefix: &str) -> Self {
        let bucket = |number| {
            let base = format!("{prefix}:{{{number}}}:");
            Bucket {
                records: format!("{base}lock:"),
                queues: format!("{base}queue:"),
                names: format!("{base}names"),
                due: format!("{base}due"),
                events: format!("{base}events"),
                floor: format!("{base}floor"),
            }
        };
        Self { prefix: prefix.to_owned(), buckets: (0..BUCKETS).map(bucket).collect() }
    }

    pub(super) fn buckets(&self) -> impl Iterator<Item = &Bucket> {
        self.buckets.iter()
    }

    pub(super) fn bucket_of(&self, name: &LockName) -> &Bucket {
        &self.buckets[usize::from(number_of(name.as_str()))]
    }

    /// The channel of notices, which every process hears that holds a lease for long or works on tasks.
    pub(super) fn notices(&self) -> String {
        format!("{}:notices", self.prefix)
    }

    /// The channel of a process.
    pub(super) fn inbox(&self, id: &str) -> String {
        format!("{}:inbox:{{{id}}}", self.prefix)
    }
}

impl Bucket {
    pub(super) fn lock(&self, name: &str) -> String {
        format!("{}{name}", self.records)
    }

    /// Those who wait for a lock.
    pub(super) fn queue(&self, name: &str) -> String {
        format!("{}{name}", self.queues)
    }
}

/// FNV-1a over the name. Part of the stored format.
fn number_of(name: &str) -> u8 {
    let step = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    let hash = name.bytes().fold(0xcbf2_9ce4_8422_2325, step);
    // The low bits of FNV are the weak ones.
    u8::try_from((hash ^ (hash >> 32)) % u64::from(BUCKETS)).expect("it is below the number of buckets")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whoever changes this loses every lock that is stored.
    #[test]
    fn a_name_stays_in_its_bucket_for_ever() {
        let key = |name: &str| {
            let (keys, name) = (Keys::new("leasehold"), LockName::new(name).unwrap());
            keys.bucket_of(&name).lock(name.as_str())
        };
        assert_eq!(key("terraform-prod"), "leasehold:{35}:lock:terraform-prod");
        assert_eq!(key("{x}"), "leasehold:{56}:lock:{x}");
    }

    #[test]
    fn names_are_spread_over_the_buckets() {
        let mut count = [0; BUCKETS as usize];
        for number in 0..6400 {
            count[usize::from(number_of(&format!("job/{number}")))] += 1;
        }
        assert!(count.iter().all(|count| (40..=200).contains(count)), "{count:?}");
    }
}
