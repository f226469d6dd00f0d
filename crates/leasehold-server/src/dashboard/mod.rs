//! Web dashboard: pages that the server renders, and a small script that keeps them up to date.
//!
//! A request passes through these files: `router.rs` (routes and headers), `viewer.rs` (sign-in), `view.rs`
//! (what a page shows, parsed from its address), `load.rs` (its data from the store), `pages/` (its HTML).
//! Tabs that show the same page share one read of the store (`snapshots.rs`).

mod actions;
mod assets;
mod browser;
mod chart;
mod data;
mod deadlocks;
mod export;
mod figures;
mod gzip;
mod layout;
mod live;
mod load;
mod pages;
mod parts;
mod pollers;
mod render;
mod ring;
mod router;
mod series;
mod session;
mod snapshots;
mod state;
mod timeline;
mod view;
mod viewer;

pub(crate) use figures::record as record_figures;
pub(crate) use router::routes;
pub(crate) use state::DashboardState;
