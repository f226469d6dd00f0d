//! Why a lock is not to be had. Whoever is in its own way is told so, not shown its own name as a stranger's.

use leasehold::Error;
use leasehold::model::Holder;

use super::failure::Failure;
use crate::exit;
use crate::identity::is_me;

const OWN_LOCK: &str = "you hold it already: do the work under that lease, or release it first";

/// The failure of a request that `holder` made; a conflict ends with the code that was asked for.
pub(crate) fn refusal(error: Error, holder: Option<&Holder>, conflict_exit: i32) -> Failure {
    let Error::Conflict { lock, mut conflict, waited } = error.clone() else {
        return error.into();
    };
    let failure = Failure::from(error).exit_with(conflict_exit);
    if conflict_exit == exit::SUCCESS {
        return failure.silent(); // To find it taken is no failure: cron should not write a mail about it.
    }
    let mut own = false;
    for held in &mut conflict.holders {
        if is_me(&held.holder, holder) {
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
