//! GitHub API: the HTTP client, its credentials and rate limits, and the calls that leasehold makes.

mod auth;
mod calls;
mod client;
mod git;
mod http;
mod rate_limit;
mod responses;

pub(super) use auth::{App, Auth};
pub(super) use client::{Api, Dated, Read};
pub(super) use git::RefUpdate;
pub(super) use http::HttpError;
pub(super) use responses::{Comment, Issue, IssueEvent, User};
