//! Failure of a lock request. If the caller itself holds the lock, the message says so instead of
//! showing the caller's name as another holder.

use leasehold::Error;
use leasehold::model::Holder;

use super::failure::Failure;
use crate::exit;
use crate::identity::{Seen, is_mine};

const OWN_LOCK: &str = "you hold it already: do the work under that lease, or release it first";

/// Returns the failure of a lock request; a conflict gets the exit code `conflict_exit`. `named` is
/// the holder name that the caller specified, if any: a lease under that name is the caller's own.
pub(crate) fn refusal(error: Error, named: Option<&Holder>, conflict_exit: i32) -> Failure {
    let Error::Conflict { lock, mut conflict, waited } = error.clone() else {
        return error.into();
    };
    let failure = Failure::from(error).exit_with(conflict_exit);
    if conflict_exit == exit::SUCCESS {
        return failure.silent(); // Not a failure for this caller: cron must not send mail about it.
    }
    let mut own = false;
    for held in &mut conflict.holders {
        if is_mine(Seen { lock: &lock, holder: &held.holder, token: held.token }, named) {
            own = true;
            let name = format!("yourself ({})", held.holder);
            held.holder = Holder::new(name).unwrap_or_else(|_| held.holder.clone());
        }
    }
    if !own {
        return failure;
    }
    let words = Error::Conflict { lock, conflict, waited }.to_string();
    failure.in_words(words).without_hints().hint(OWN_LOCK)
}
