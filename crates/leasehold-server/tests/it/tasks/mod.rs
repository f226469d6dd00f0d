//! Tasks over HTTP.

mod adding;
mod by_hand;
mod examples;
mod leasing;
mod refused;
mod roles;
mod schedules;
mod settling;
