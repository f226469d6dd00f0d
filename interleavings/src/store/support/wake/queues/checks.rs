//! Workers that wait for tasks and leave, while tasks arrive.

use std::sync::Arc;
use std::time::Duration;

use shuttle::future::{block_on, spawn};
use shuttle::sync::Mutex;

use super::subject::QueueNotifier;
use crate::model::QueueName;
use crate::simulated::maybe_cancelled;

/// Each worker takes one task and leaves. One notification per task must be enough.
pub fn every_task_is_taken_although_workers_leave() {
    let (notifier, queue) = (QueueNotifier::default(), QueueName::new("mail").expect("a name"));
    let tasks = Arc::new(Mutex::new(0_u32));
    block_on(async {
        let workers: Vec<_> = (0..3)
            .map(|_| {
                let (notifier, queue, tasks) = (notifier.clone(), queue.clone(), tasks.clone());
                spawn(async move {
                    let mut subscription = notifier.listen(&[queue], Duration::from_secs(1));
                    loop {
                        {
                            let mut tasks = tasks.lock().expect("no panic");
                            if *tasks > 0 {
                                *tasks -= 1;
                                return;
                            }
                        }
                        // The wait may be dropped and begun again.
                        maybe_cancelled(subscription.next(None)).await;
                    }
                })
            })
            .collect();
        for _ in 0..3 {
            *tasks.lock().expect("no panic") += 1;
            notifier.notify(&queue, 1);
        }
        for worker in workers {
            worker.await.expect("no panic");
        }
    });
    assert!(!notifier.has_subscribers(), "nothing remains");
}
