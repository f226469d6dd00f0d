//! The dashboard over real connections: pages, headers, sign-in, actions.

mod access;
mod browser;
mod chromium;
mod compression;
mod live;
mod locks;
mod pages;
mod scene;
