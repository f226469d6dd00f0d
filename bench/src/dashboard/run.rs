//! Time of each page, first and again, and what many tabs cost.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use leasehold::Leasehold;
use reqwest::Client;

use super::fill::{fill, lock};
use crate::chart;
use crate::cli::DashboardArgs;
use crate::http::{Kind, ServerProcess};
use crate::measure::{float, now};
use crate::report::{Cell, Report, Table, duration, grouped, median};
use crate::sandbox::runtime;

/// Time after which a page reads the store again, with a margin.
const REFRESH: Duration = Duration::from_millis(1200);
/// Reads of each page after the first.
const READS: usize = 5;
/// Requests for a page that another request has just read.
const SHARED: usize = 20;
/// Time for which the reads of open tabs are counted.
const WATCHED: Duration = Duration::from_secs(10);
/// Longest time that a page may take, in nanoseconds.
const LIMIT: f64 = 300e6;

pub(crate) fn run(args: &DashboardArgs) -> Result<()> {
    let runtime = runtime()?;
    let folder = match &args.dir {
        Some(folder) => tempfile::tempdir_in(folder)?,
        None => tempfile::tempdir()?,
    };
    let file = format!("sqlite:{}", folder.path().join("store.db").display());
    let url = args.store.clone().unwrap_or(file);
    runtime.block_on(async {
        let begun = now();
        let leasehold = Leasehold::connect(&url).await?;
        let filled = fill(&leasehold, args).await?;
        leasehold.close().await;
        eprintln!(
            "{} locks, {} of them with a waiter, and {} tasks in {}",
            args.locks,
            args.waited,
            args.tasks,
            duration(float(now() - begun))
        );
        let server = ServerProcess::new(&Kind::Store(url))?;
        let browser = Browser { client: Client::new(), base: format!("http://{}", server.address) };
        let mut rows = Vec::new();
        for (name, path) in pages(args, &filled.task.to_string()) {
            eprintln!("{name}");
            rows.push(browser.measure(&name, &path).await?);
        }
        let remarks = vec![browser.watch(args.tabs).await?];
        let columns = vec!["page", "first", "again", "slowest", "shared", "bytes", "target"];
        let table = Table { title: "Pages of the dashboard", columns, left: 1, rows };
        chart::publish(&Report { tables: vec![table], remarks }, "dashboard", &args.format)
    })
}

/// Returns names and paths of the pages.
fn pages(args: &DashboardArgs, task: &str) -> Vec<(String, String)> {
    let escaped = |number| lock(number).replace('/', "%2F");
    let pages = [
        ("Overview", "/".to_owned()),
        ("Locks", "/locks".to_owned()),
        ("Locks by prefix", "/locks?q=tenant-042%2F".to_owned()),
        ("Locks by holder", "/locks?q=holder%3Arunner-499".to_owned()),
        ("Locks by an unknown holder", "/locks?q=holder%3Anobody".to_owned()),
        ("Locks with waiters", "/locks?state=waited".to_owned()),
        ("Free locks", "/locks?state=free".to_owned()),
        ("Stale locks", "/locks?state=stale".to_owned()),
        ("Lock", format!("/locks/{}", escaped(0))),
        ("Lock with a waiter", format!("/locks/{}", escaped(args.locks.saturating_sub(1)))),
        ("Queues", "/queues".to_owned()),
        ("Tasks", "/tasks".to_owned()),
        ("Pending tasks of a queue", "/tasks?queue=mail&state=pending".to_owned()),
        ("Succeeded tasks of a queue", "/tasks?queue=mail&state=succeeded".to_owned()),
        ("Failed tasks", "/tasks?state=failed".to_owned()),
        ("Tasks of a small queue", "/tasks?queue=small".to_owned()),
        ("Pending tasks of a small queue", "/tasks?queue=small&state=pending".to_owned()),
        ("Task", format!("/tasks/{task}")),
        ("Executions", "/executions".to_owned()),
        ("Schedules", "/schedules".to_owned()),
        ("Workers", "/workers".to_owned()),
        ("Audit", "/audit".to_owned()),
        ("Health", "/health".to_owned()),
        ("GET /api/v1/deadlocks", "/api/v1/deadlocks".to_owned()),
    ];
    pages.map(|(name, path)| (name.to_owned(), path)).into()
}

struct Browser {
    client: Client,
    base: String,
}

impl Browser {
    /// Loads a page; returns the time in nanoseconds and the number of bytes.
    async fn load(&self, path: &str) -> Result<(f64, usize)> {
        let begun = now();
        let request = self.client.get(format!("{}{path}", self.base)).header("accept-encoding", "gzip");
        let response = request.send().await?;
        let status = response.status();
        let body = response.bytes().await?;
        ensure!(status.is_success(), "{path}: {status}: {}", String::from_utf8_lossy(&body));
        Ok((float(now() - begun), body.len()))
    }

    async fn measure(&self, name: &str, path: &str) -> Result<Vec<Cell>> {
        let (first, bytes) = self.load(path).await?;
        let (mut again, mut shared) = (Vec::new(), Vec::new());
        for _ in 0..READS {
            tokio::time::sleep(REFRESH).await;
            again.push(self.load(path).await?.0);
        }
        for _ in 0..SHARED {
            shared.push(self.load(path).await?.0);
        }
        let slowest = again.iter().copied().fold(first, f64::max);
        let mark = if slowest < LIMIT { "✓" } else { "✗" };
        Ok(vec![
            Cell::text(name),
            Cell::time(Some(first)),
            Cell::time(median(again.iter().copied())).with_rounds(&again),
            Cell::time(Some(slowest)),
            Cell::time(median(shared)),
            Cell::number(Some(float(bytes as u64)), grouped),
            Cell::text(format!("{mark} < {}", duration(LIMIT))),
        ])
    }

    /// Opens tabs with the overview, and counts the reads of the store while they are open.
    async fn watch(&self, tabs: u32) -> Result<String> {
        let mut streams = Vec::new();
        for _ in 0..tabs {
            streams.push(self.client.get(format!("{}/live?view=%2F", self.base)).send().await?);
        }
        let before = self.reads().await?;
        tokio::time::sleep(WATCHED).await;
        let reads = self.reads().await?.saturating_sub(before);
        let begun = now();
        let loads = (0..tabs).map(|_| {
            let browser = Self { client: self.client.clone(), base: self.base.clone() };
            tokio::spawn(async move { browser.load("/").await })
        });
        for load in loads.collect::<Vec<_>>() {
            load.await??;
        }
        let all = duration(float(now() - begun));
        drop(streams);
        Ok(format!(
            "{tabs} open tabs with the overview cause {:.1} reads of lists of locks per second; all of them load the page \
             at once in {all}.",
            float(reads) / WATCHED.as_secs_f64()
        ))
    }

    /// Returns how often the server has read a list of locks.
    async fn reads(&self) -> Result<u64> {
        let page = self.client.get(format!("{}/metrics", self.base)).send().await?.text().await?;
        let count = |line: &str| {
            let rest = line.strip_prefix("leasehold_store_operation_duration_seconds_count{op=\"")?;
            let (op, count) = rest.split_once("\"} ")?;
            (op == "lock_list").then(|| count.trim().parse::<u64>().ok())?
        };
        page.lines().find_map(count).context("the server does not count its reads")
    }
}
