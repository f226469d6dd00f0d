//! Why a lock is not to be had. Whoever is in its own way is told so, not shown its own name as a stranger's.

use leasehold::Error;
use leasehold::model::Holder;

use super::failure::Failure;
use crate::identity::is_me;

const OWN_LOCK: &str = "you hold it already: do the work under that lease, or release it first";

/// The failure of a request that `holder` made; a conflict ends with the code that was asked for.
pub(crate) fn refusal(error: Error, holder: &Holder, conflict_exit: i32) -> Failure {
    let Error::Conflict { lock, mut conflict, waited } = error else {
        return error.into();
    };
    let mut own = false;
    for held in &mut conflict.holders {
        if is_me(&held.holder, Some(holder)) {
            own = true;
            let name = format!("yourself ({})", held.holder);
            held.holder = Holder::new(name).unwrap_or_else(|_| held.holder.clone());
        }
    }
    let failure = Failure::from(Error::Conflict { lock, conflict, waited }).exit_with(conflict_exit);
    if own { failure.without_hints().hint(OWN_LOCK) } else { failure }
}
