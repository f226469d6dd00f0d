//! A queue of videos: typed tasks with progress, a worker that crashes, and one that takes over.
//!
//! `cargo run -p leasehold --example video-queue`

use std::path::Path;
use std::time::Duration;

use leasehold::model::{Progress, TaskId, TaskState};
use leasehold::{HandlerError, Leasehold, TaskContext, TaskType, Worker};
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize)]
struct Encode {
    video: String,
    frames: u64,
}

impl TaskType for Encode {
    const QUEUE: &'static str = "video";
    const TTL: Duration = Duration::from_secs(1);
}

#[derive(Serialize)]
struct Encoded {
    file: String,
}

/// Data that all handlers of a worker share.
#[derive(Clone)]
struct Encoder {
    name: &'static str,
}

impl Encoder {
    async fn encode(self, task: TaskContext<Encode>) -> Result<Encoded, HandlerError> {
        let Encode { video, frames } = &task.payload;
        println!("  {}: {video}, attempt {} under token {}", self.name, task.attempt(), task.token());
        if Path::new(video).extension().is_none_or(|kind| kind != "mov") {
            return Err(HandlerError::fail("this is not a video")); // No retry.
        }
        for frame in 0..*frames {
            tokio::time::sleep(Duration::from_millis(10)).await; // A handler that loses its lease ends here.
            task.progress(Progress::of(frame + 1, *frames).note("encoding"));
        }
        Ok(Encoded { file: format!("{video}.av1") })
    }
}

fn worker(leasehold: &Leasehold, name: &'static str) -> leasehold::Result<Worker> {
    let encoder = Encoder { name };
    leasehold.worker().slots(2).handle_with(encoder, |task, encoder: Encoder| encoder.encode(task)).start()
}

#[tokio::main]
async fn main() -> leasehold::Result<()> {
    let leasehold = Leasehold::connect("memory:").await?;
    let video = |video: &str, frames| Encode { video: video.to_owned(), frames };

    println!(
        "three videos are added; the short one has a higher priority, and tasks with one lock run one at a time:"
    );
    let long = leasehold.enqueue(&video("long.mov", 300)).lock("archive").await?.id;
    let odd = leasehold.enqueue(&video("notes.txt", 1)).await?.id;
    let short = leasehold.enqueue(&video("short.mov", 20)).priority(10).await?.id;

    println!("a first worker begins, and crashes while it encodes long.mov:");
    let crashing = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
    let crashing = crashing.expect("a runtime");
    let gone = {
        let _there = crashing.enter();
        worker(&leasehold, "worker 1")?
    };
    until(&leasehold, short, TaskState::Succeeded).await?;
    until(&leasehold, odd, TaskState::Failed).await?;
    loop {
        let task = leasehold.tasks()?.get(long).await?;
        if let Some(progress) = task.progress {
            println!("  long.mov is at {progress}");
            break;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    crashing.shutdown_background();
    println!("worker 1 has crashed");

    println!("the lease of worker 1 expires, and a second worker takes over:");
    let worker = worker(&leasehold, "worker 2")?;
    until(&leasehold, long, TaskState::Succeeded).await?;
    worker.stop(Duration::from_secs(5)).await;
    drop(gone);

    let task = leasehold.tasks()?.get(long).await?;
    for event in &task.events {
        println!(
            "  attempt {} {}: {}",
            event.attempt,
            event.kind,
            event.why.as_ref().map_or("", |why| why.as_str())
        );
    }
    println!(
        "  attempt {} succeeded: {}",
        task.attempt,
        task.result.as_ref().map_or("", |result| result.as_str())
    );
    Ok(())
}

async fn until(leasehold: &Leasehold, id: TaskId, state: TaskState) -> leasehold::Result<()> {
    while leasehold.tasks()?.get(id).await?.state != state {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    Ok(())
}
