//! The check of a history against every property.

use super::findings::{Check, Checked, Property};
use super::{exclusion, fencing, queue, spans, tasks};
use crate::history::History;

/// Checks a history against every property.
pub fn check(history: &History) -> Vec<Checked> {
    let spans = spans::of(history);
    let check = Check { history, spans: &spans };
    vec![
        check.run(Property::Exclusion, exclusion::check),
        check.run(Property::Fencing, fencing::check),
        check.run(Property::FairQueue, queue::check),
        check.run(Property::Tasks, tasks::check),
    ]
}
