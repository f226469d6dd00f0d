//! Tasks over HTTP.

mod adding;
mod by_hand;
mod described;
mod examples;
mod leasing;
mod refused;
mod roles;
mod schedules;
mod settling;
