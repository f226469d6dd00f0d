//! What tasks cost: adding them, working them off, and how soon one that was added begins.

mod adders;
mod aims;
mod crew;
mod depth;
mod drain;
mod enqueue;
mod figure;
mod peers;
mod plan;
mod raw;
mod report;
mod rounds;
mod row;
mod run;
mod start;
mod tables;

pub(crate) use crew::serve;
pub(crate) use run::run;
