//! GitHub API: the HTTP client, its credentials and rate limits, and the calls that leasehold makes.

mod auth;
mod calls;
mod client;
mod errors;
mod http;
mod rate_limit;
mod responses;

pub(super) use auth::{App, Auth};
pub(super) use calls::{PAGE, RefUpdate};
pub(super) use client::{Api, Dated, Read};
pub(super) use rate_limit::REQUESTS_PER_RENEWAL;
pub(super) use responses::{Comment, Issue, IssueEvent, User};
