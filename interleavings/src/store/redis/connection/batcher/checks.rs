//! Callers whose operations are sent in batches, and some of whose calls are dropped.

use std::sync::Arc;

use shuttle::future::{block_on, spawn};
use uuid::Uuid;

use super::connections::Connections;
use super::subject::{BatchedOp, Batcher};
use crate::model::LeaseId;
use crate::simulated::maybe_cancelled;
use crate::store::repeat::Repeat;

fn operation(number: u32) -> (LeaseId, String, BatchedOp) {
    let record = format!("record {number}");
    let op = BatchedOp {
        record: record.clone(),
        name_length: 0,
        op: "acquire",
        arguments: [const { Vec::new() }; 3],
        now: String::new(),
    };
    (LeaseId::from_uuid(Uuid::from_u128(number.into())), record, op)
}

/// Every call ends. An operation is sent at most once; if its caller has no answer, then it was never
/// sent, or the lease is marked as in doubt.
pub fn every_call_is_answered_or_in_doubt_or_was_never_sent() {
    let (batcher, connections) = (Arc::new(Batcher::default()), Arc::new(Connections::default()));
    block_on(async {
        let callers: Vec<_> = (0..3)
            .map(|number| {
                let (batcher, connections) = (batcher.clone(), connections.clone());
                spawn(async move {
                    let (lease, record, op) = operation(number);
                    let call = batcher.send(&connections, &lease, op, Repeat::Unsafe);
                    (lease, record, maybe_cancelled(call).await)
                })
            })
            .collect();
        let mut calls = Vec::new();
        for caller in callers {
            calls.push(caller.await.expect("no panic"));
        }
        connections.senders_end().await;
        for (lease, record, answer) in calls {
            let sent = connections.sent.lock().expect("no panic");
            let times = sent.iter().filter(|other| **other == record).count();
            let is_in_doubt = connections.in_doubt.lock().expect("no panic").contains(&lease);
            match answer {
                Some(Some(Ok(_))) => assert_eq!((times, is_in_doubt), (1, false), "{record}"),
                _ => {
                    assert!(
                        times == 0 || (times == 1 && is_in_doubt),
                        "{record} was sent, and its caller does not know it"
                    );
                }
            }
        }
    });
}
