//! Concurrent calls for one key, some of which are dropped at any point.

use std::sync::Arc;

use shuttle::future::{block_on, spawn, yield_now};
use shuttle::sync::Mutex;

use super::subject::{InOrder, Keep, KeptState};
use crate::simulated::{maybe_cancelled, poll_once};

const KEY: u8 = 1;

/// Number of calls that have ended; kept while it is not zero.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
struct Count(u32);

impl KeptState for Count {
    fn keep(&mut self) -> Keep {
        if self.0 == 0 { Keep::No } else { Keep::Yes }
    }
}

#[derive(Default)]
struct Seen {
    entered: u32,
    is_running: bool,
    last_begun: Option<u32>,
    ended: u32,
}

pub fn calls_begin_one_at_a_time_in_order_and_pass_the_state_on() {
    let (order, seen) = (InOrder::<u8, Count>::default(), Arc::new(Mutex::new(Seen::default())));
    block_on(async {
        let calls: Vec<_> = (0..3).map(|_| spawn(call(order.clone(), seen.clone()))).collect();
        for call in calls {
            call.await.expect("no panic");
        }
    });
    let ended = seen.lock().expect("no panic").ended;
    let last = poll_once(order.enter(KEY)).expect("no call remains, so the next one begins at once");
    assert_eq!(*last, Count(ended), "the state was passed on by every call");
}

async fn call(order: InOrder<u8, Count>, seen: Arc<Mutex<Seen>>) {
    let (number, turn) = {
        let mut seen = seen.lock().expect("no panic");
        seen.entered += 1;
        (seen.entered, order.enter(KEY))
    };
    let Some(mut turn) = maybe_cancelled(turn).await else { return };
    {
        let mut seen = seen.lock().expect("no panic");
        assert!(!seen.is_running, "two calls run at the same time");
        assert!(seen.last_begun < Some(number), "a later call has begun before this one");
        (seen.is_running, seen.last_begun) = (true, Some(number));
    }
    assert_eq!(turn.0, seen.lock().expect("no panic").ended, "the state is that of the call before");
    yield_now().await;
    turn.0 += 1;
    let mut seen = seen.lock().expect("no panic");
    (seen.is_running, seen.ended) = (false, seen.ended + 1);
    drop(seen);
    drop(turn);
}

/// Without a state to keep, nothing remains of a key.
pub fn calls_for_other_keys_are_independent_and_leave_nothing() {
    let order = InOrder::<u8>::default();
    block_on(async {
        let calls: Vec<_> = (0..4)
            .map(|number| {
                let turn = order.enter(number % 2);
                spawn(async move {
                    let turn = maybe_cancelled(turn).await;
                    yield_now().await;
                    drop(turn);
                })
            })
            .collect();
        for call in calls {
            call.await.expect("no panic");
        }
    });
    let shown = format!("{order:?}");
    assert!(shown.contains("by_key: {}"), "an entry remains: {shown}");
}
