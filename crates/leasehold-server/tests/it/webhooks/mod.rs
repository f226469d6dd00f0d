//! Webhooks: which deliveries are believed, which start something, what starts once, and what is answered to the rest.

mod counted;
mod filters;
mod origin;
mod replays;
mod senders;
mod signed;
