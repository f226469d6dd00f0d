//! Large tasks and large results over a slow connection.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use leasehold::model::{Payload, RetryPolicy, TaskId, TaskState, Ttl};
use leasehold::{HandlerError, Leasehold, TaskContext};
use leasehold_server::Access;

use super::support::Served;

/// Starts a proxy that limits the responses of all connections together to `bytes_per_second`. It
/// ends with the test's process.
fn slow_proxy(server: SocketAddr, bytes_per_second: u32) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let free_at = Arc::new(std::sync::Mutex::new(Instant::now()));
    std::thread::spawn(move || {
        for client in listener.incoming() {
            let Ok(client) = client else { return };
            let Ok(server) = TcpStream::connect(server) else { continue };
            let (there, back) = (client.try_clone().unwrap(), server.try_clone().unwrap());
            std::thread::spawn(move || pass(there, server, |_| {}));
            let free_at = free_at.clone();
            std::thread::spawn(move || {
                pass(back, client, |bytes| {
                    let wait = {
                        let mut free_at = free_at.lock().unwrap();
                        let wait = free_at.saturating_duration_since(Instant::now());
                        *free_at = (*free_at).max(Instant::now())
                            + Duration::from_secs(1) * u32::try_from(bytes).unwrap() / bytes_per_second;
                        wait
                    };
                    std::thread::sleep(wait);
                });
            });
        }
    });
    address
}

fn pass(mut from: TcpStream, mut to: TcpStream, before: impl Fn(usize)) {
    let mut buffer = vec![0; 16 << 10];
    while let Ok(bytes @ 1..) = from.read(&mut buffer) {
        before(bytes);
        if to.write_all(&buffer[..bytes]).is_err() {
            break;
        }
    }
    let _ = to.shutdown(std::net::Shutdown::Write);
}

fn large(kibibytes: usize) -> Payload {
    Payload::of(&"x".repeat((kibibytes << 10) - 2)).unwrap()
}

async fn add(leasehold: &Leasehold, tasks: usize, payload: &Payload) -> Vec<TaskId> {
    let mut ids = Vec::new();
    for _ in 0..tasks {
        let retries =
            RetryPolicy { attempts: 1, initial_delay: Ttl::from_secs(1), max_delay: Ttl::from_secs(1) };
        ids.push(leasehold.enqueue_to("q", payload.clone()).retries(retries).await.unwrap().id);
    }
    ids
}

async fn wait_until_all_succeeded(leasehold: &Leasehold, ids: &[TaskId], timeout: Duration) {
    let end = Instant::now() + timeout;
    for id in ids {
        loop {
            let task = leasehold.tasks().unwrap().get(*id).await.unwrap();
            match task.state {
                TaskState::Succeeded => break,
                TaskState::Failed => panic!("{:?}", task.error),
                state => assert!(Instant::now() < end, "it is still {state}"),
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
}

/// Leased together they would exceed the timeout of a call repeatedly, until their attempts are
/// used up.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn large_tasks_are_leased_over_a_slow_network() {
    let direct = Leasehold::connect("memory:").await.unwrap();
    let served = Served::with(direct.clone(), Access::Open, "127.0.0.1:0".parse().unwrap());
    let ids = add(&direct, 24, &large(512)).await;
    let slow = slow_proxy(served.address, 2 << 20);
    let far = Leasehold::connect(&format!("http://{slow}")).await.unwrap();
    let begun = Arc::new(AtomicU32::new(0));
    let count = begun.clone();
    let worker = far.worker().slots(24).handle_queue(
        "q",
        Duration::from_secs(6),
        move |task: TaskContext<Payload>| {
            let count = count.clone();
            async move {
                assert_eq!(task.payload.as_str().len(), 512 << 10);
                count.fetch_add(1, Ordering::SeqCst);
                Ok::<_, HandlerError>(())
            }
        },
    );
    let worker = worker.start().unwrap();
    wait_until_all_succeeded(&direct, &ids, Duration::from_mins(1)).await;
    worker.stop(Duration::from_secs(5)).await;
    assert_eq!(begun.load(Ordering::SeqCst), 24, "each was begun once");
}

/// Together they exceed the maximum size of a request.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn large_results_that_end_together_are_all_settled() {
    let direct = Leasehold::connect("memory:").await.unwrap();
    let served = Served::with(direct.clone(), Access::Open, "127.0.0.1:0".parse().unwrap());
    let ids = add(&direct, 40, &Payload::default()).await;
    let far = Leasehold::connect(&served.url()).await.unwrap();
    let together = Arc::new(tokio::sync::Barrier::new(40));
    let worker =
        far.worker().slots(40).handle_queue("q", Duration::from_secs(6), move |_: TaskContext<Payload>| {
            let together = together.clone();
            async move {
                together.wait().await;
                Ok::<_, HandlerError>(large(1024))
            }
        });
    let worker = worker.start().unwrap();
    wait_until_all_succeeded(&direct, &ids, Duration::from_mins(1)).await;
    worker.stop(Duration::from_secs(5)).await;
}
