//! A publisher: 100 posts are due at the same instant, five worker processes upload them, and one of the processes is
//! killed in the middle of it. Nothing is lost and nothing is published twice.
//!
//! `cargo run -p leasehold --example publisher`

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::time::Duration;

use leasehold::model::{RetryPolicy, TaskEventKind, TaskState, Timestamp, Ttl};
use leasehold::store::ListTasks;
use leasehold::{HandlerError, Leasehold, TaskContext, TaskType};
use serde::{Deserialize, Serialize};

const POSTS: usize = 100;
const WORKERS: usize = 5;

#[derive(Serialize, Deserialize)]
struct Post {
    number: usize,
    text: String,
}

impl TaskType for Post {
    const QUEUE: &'static str = "posts";
    /// A crashed worker's posts are free again after this long.
    const TTL: Duration = Duration::from_secs(2);
    const RETRIES: RetryPolicy =
        RetryPolicy { attempts: 5, initial_delay: Ttl::from_millis(100), max_delay: Ttl::from_secs(5) };
}

type Outcome<T = ()> = Result<T, Box<dyn std::error::Error>>;

#[tokio::main]
async fn main() -> Outcome {
    match std::env::args().nth(1) {
        Some(folder) => work(Path::new(&folder)).await,
        None => publish().await,
    }
}

/// One worker process: uploads posts until it is ended.
async fn work(folder: &Path) -> Outcome {
    let leasehold = Leasehold::connect(&store(folder)).await?;
    let worker = leasehold
        .worker()
        .slots(4)
        .handle_with(folder.join("platform"), |post: TaskContext<Post>, platform| async move {
            upload(&platform, &post).await
        });
    let _worker = worker.start()?;
    std::future::pending().await
}

/// The platform takes a post once, and remembers under which token. That is what makes a crash between the upload
/// and the settlement harmless: the next attempt finds that it is done.
async fn upload(platform: &Path, post: &TaskContext<Post>) -> Result<&'static str, HandlerError> {
    tokio::time::sleep(Duration::from_millis(50)).await;
    let place = platform.join(format!("post-{}", post.payload.number));
    match fs::OpenOptions::new().write(true).create_new(true).open(place) {
        Ok(mut file) => {
            writeln!(file, "{}\n{}", post.token(), post.payload.text)?;
            Ok("published")
        }
        Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => Ok("was published already"),
        Err(error) => Err(error.into()),
    }
}

/// Schedules the posts, starts the workers, kills one of them, and looks at what came of it.
async fn publish() -> Outcome {
    let folder = std::env::temp_dir().join(format!("leasehold-publisher-{}", std::process::id()));
    fs::create_dir_all(folder.join("platform"))?;
    let leasehold = Leasehold::connect(&store(&folder)).await?;

    let due = Timestamp::from_micros(leasehold.now().await?.as_micros() + 2_000_000);
    for number in 0..POSTS {
        let post = Post { number, text: format!("post number {number}") };
        leasehold.enqueue(&post).key(format!("post-{number}").as_str()).run_at(due).await?;
        // A scheduler that is not sure whether it has done it does it again.
        let again = leasehold.enqueue(&post).key(format!("post-{number}").as_str()).run_at(due).await?;
        assert!(again.duplicate, "the key means the same post");
    }
    println!("{POSTS} posts are scheduled for {due}");

    let mut workers = Processes((0..WORKERS).map(|_| start(&folder)).collect::<Outcome<Vec<_>>>()?);
    println!("{WORKERS} worker processes are waiting for them");

    let published = || fs::read_dir(folder.join("platform")).map_or(0, Iterator::count);
    while published() < POSTS / 4 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    println!("{} posts are out; one of the workers is killed in the middle of it", published());
    workers.0[0].kill()?;

    let tasks = leasehold.tasks()?;
    while tasks.queues().await?[0].counts.get(TaskState::Succeeded) < POSTS as u64 {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    drop(workers);

    let all = tasks.list(&ListTasks::default().limit(1000)).await?.items;
    let freed = all.iter().flat_map(|task| &task.events).filter(|event| event.kind == TaskEventKind::Expired);
    let at_once = all.iter().filter(|task| task.version == 3).count();
    println!("{} posts are published, each of them once", published());
    println!("{at_once} of them are at version 3: added, leased once, settled");
    println!("{} leases of the killed worker ran out and were freed", freed.count());
    assert_eq!((published(), all.len()), (POSTS, POSTS));
    fs::remove_dir_all(folder)?;
    Ok(())
}

fn store(folder: &Path) -> String {
    format!("sqlite:{}", folder.join("leasehold.db").display())
}

fn start(folder: &Path) -> Outcome<Child> {
    let program: PathBuf = std::env::current_exe()?;
    Ok(Command::new(program).arg(folder).spawn()?)
}

/// Worker processes, ended with this program.
struct Processes(Vec<Child>);

impl Drop for Processes {
    fn drop(&mut self) {
        for worker in &mut self.0 {
            let _ = worker.kill();
            let _ = worker.wait();
        }
    }
}
