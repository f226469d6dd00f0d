//! Keys of locks, and their distribution over buckets.
//!
//! `PREFIX:{17}:lock:NAME` is the record of a lock. The text in braces decides on which node a
//! Cluster keeps a key, so all keys of one bucket are on one node and one script can change them
//! atomically: the records and their waiters (`…:queue:NAME`), `…:names` for listing, `…:due` for
//! sweeping, `…:recent`, `…:blocks` and `…:events` for the history (`locks/recent.lua`), `…:floor` for
//! the minimum token after forgotten locks. The first brace counts, and the name comes after it: a name
//! may contain braces. The scripts build the other keys of a bucket from the key of a record.

use crate::model::LockName;

/// Number of buckets. Part of the stored format.
pub(super) const BUCKETS: u8 = 64;

pub(super) struct Keys {
    prefix: String,
    buckets: Vec<Bucket>,
}

/// Keys that the locks of one bucket share.
pub(super) struct Bucket {
    /// Prefix of the keys of the bucket's records.
    records: String,
    /// Prefix of the keys of the bucket's queues.
    queues: String,
    pub(super) names: String,
    pub(super) due: String,
    /// Stream of blocks of events, and the text of the newest events.
    pub(super) blocks: String,
    pub(super) recent: String,
    /// Stream of single events, which earlier versions have written.
    pub(super) events: String,
    /// Key of a token above every token of a forgotten lock of this bucket.
    pub(super) min_token: String,
    /// Key that never exists. On a Cluster, scripts that build keys declare it: while the slot of the bucket
    /// moves to another node, key by key, Redis then refuses a script before its first write.
    pub(super) absent: String,
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
                blocks: format!("{base}blocks"),
                recent: format!("{base}recent"),
                events: format!("{base}events"),
                min_token: format!("{base}floor"),
                absent: format!("{base}absent"),
            }
        };
        Self { prefix: prefix.to_owned(), buckets: (0..BUCKETS).map(bucket).collect() }
    }

    pub(super) fn buckets(&self) -> impl Iterator<Item = &Bucket> {
        self.buckets.iter()
    }

    pub(super) fn bucket_of(&self, name: &LockName) -> &Bucket {
        &self.buckets[bucket_number(name.as_str())]
    }

    /// Returns the channel of notices, to which every process subscribes that holds a lease for long
    /// or works on tasks.
    pub(super) fn notice_channel(&self) -> String {
        format!("{}:notices", self.prefix)
    }

    pub(super) fn process_channel(&self, id: &str) -> String {
        format!("{}:inbox:{{{id}}}", self.prefix)
    }
}

impl Bucket {
    pub(super) fn lock(&self, name: &str) -> String {
        format!("{}{name}", self.records)
    }

    /// Returns the key of the list of a lock's waiters.
    pub(super) fn queue(&self, name: &str) -> String {
        format!("{}{name}", self.queues)
    }
}

/// Returns the end of the range of keys that begin with `prefix`: no text contains the byte 0xff.
pub(super) fn prefix_end(prefix: &str) -> Vec<u8> {
    if prefix.is_empty() {
        return b"+".to_vec();
    }
    [b"(", prefix.as_bytes(), &[0xff]].concat()
}

/// Returns the number of the bucket of a lock: FNV-1a over its name. Part of the stored format.
pub(super) fn bucket_number(name: &str) -> usize {
    let step = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    let hash = name.bytes().fold(0xcbf2_9ce4_8422_2325, step);
    // The low bits of FNV are the weak ones.
    usize::try_from((hash ^ (hash >> 32)) % u64::from(BUCKETS))
        .expect("the remainder is less than the number of buckets")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A change of these values would lose every stored lock.
    #[test]
    fn the_bucket_of_a_name_never_changes() {
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
            count[bucket_number(&format!("job/{number}"))] += 1;
        }
        assert!(count.iter().all(|count| (40..=200).contains(count)), "{count:?}");
    }
}
