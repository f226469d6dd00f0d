//! Web dashboard: pages that the server renders, and a small script that keeps them up to date.
//!
//! A request passes through these files: `router.rs` (routes and headers), `http/session.rs` (sign-in), `view.rs`
//! (what a page shows, parsed from its address), `load.rs` (its data from the store), `pages/` (its HTML).
//! Tabs that show the same page share one read of the store (`live/snapshots.rs`).

mod actions;
mod data;
mod export;
mod figures;
mod http;
mod live;
mod load;
mod pages;
mod router;
mod svg;
mod view;

pub(crate) use data::DashboardState;
pub(crate) use figures::recorder::record as record_figures;
pub(crate) use router::routes;
