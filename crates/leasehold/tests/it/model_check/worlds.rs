//! The worlds that are explored: each small enough to be seen whole, each aimed at one theme.

use leasehold::model::{Mode, Ttl};

use super::config::{Config, Plan};

pub(super) fn all() -> Vec<Config> {
    let worker = Plan { renewals: 1, ..Plan::default() };
    let excl = Config {
        name: "e0",
        workers: vec![worker.clone(), worker.clone()],
        ticks: 3,
        writes: 2,
        ..Config::default()
    };
    let e2 = Config { name: "e2 att2", workers: vec![Plan { attempts: 2, ..worker.clone() }, worker.clone()], ..excl.clone() };
    let e3 = Config { name: "e3 renew_for", workers: vec![Plan { ttl: 3, renewals: 2, renew_for: Some(1), ..worker.clone() }, worker.clone()], ..excl.clone() };
    let e4 = Config { name: "e4 force att2", forces: 1, stops: 1, ..e2.clone() };
    let e5 = Config { name: "e5 force att2", forces: 1, workers: vec![Plan { attempts: 2, ..worker.clone() }, Plan { renewals: 0, ..worker.clone()}],..excl.clone() };
    let r = Plan { attempts: 1, asks: 2, leaves: true, ..Plan::default() };
    let r0 = Config {
        name: "r0",
        workers: vec![r.clone(), r.clone()],
        ticks: 3,
        writes: 2,
        ..Config::default()
    };
    let r2 = Config { name: "r2 dup", duplicates: 1, workers: vec![r.clone(), Plan { asks: 1, ..r.clone() }], ..r0.clone() };
    let r3 = Config { name: "r3 dup, no leave", duplicates: 1, workers: vec![Plan { leaves: false, ..r.clone() }, Plan { asks: 1, leaves: false,..r.clone() }], ..r0.clone() };
    let q = Plan { asks: 2, queue: Some(1), leaves: true, ..Plan::default() };
    let q0 = Config {
        name: "q0",
        workers: vec![q.clone(), q.clone()],
        ticks: 3,
        ..Config::default()
    };
    let q1 = Config { name: "q1 att2", workers: vec![Plan { attempts: 2, asks: 1, ..q.clone() }, q.clone()], ..q0.clone() };
    let q2 = Config { name: "q2 impatient", workers: vec![Plan { attempts: 2, asks: 1, leaves: false, ..q.clone() }, Plan { leaves: false, asks: 3, impatient: true, ..q.clone()}], ..q0.clone() };
    let q3 = Config { name: "q3 three", workers: vec![Plan { asks: 1, leaves: false, ..q.clone()}, Plan { asks: 1, ..q.clone()}, Plan{leaves: false, ..q.clone()}], ..q0.clone() };
    let sw = Plan { queue: Some(2), asks: 2, ..Plan::default() };
    let s0 = Config {
        name: "s0",
        workers: vec![sw.clone(), sw.clone()],
        ticks: 3,
        crashes: 1,
        sweeps: 2,
        ..Config::default()
    };
    let s1 = Config { name: "s1 crash2 renew", crashes: 2, workers: vec![Plan { asks: 1, renewals: 1, ..sw.clone() }, sw.clone()], ..s0.clone() };
    let reader = Plan { mode: Mode::Shared, queue: Some(2), ..Plan::default() };
    let writer = Plan { mode: Mode::Exclusive, ..reader.clone() };
    let sh = Config {
        name: "shared",
        workers: vec![reader.clone(), writer.clone(), reader.clone()],
        ticks: 3,
        ..Config::default()
    };
    let sh1 = Config { name: "shared ask2", workers: vec![reader.clone(), Plan { asks: 2, ..writer.clone() }, Plan { leaves: true, ..reader.clone()}], ..sh.clone() };
    let sh2 = Config { name: "shared att2", workers: vec![reader.clone(), Plan { leaves: true, ..writer.clone() }, Plan { attempts: 2, ..reader.clone()}], ..sh.clone() };
    let p = Plan { queue: Some(3), ..Plan::default() };
    let p0 = Config { name: "prio", tick: Ttl::from_secs(15), ticks: 4, workers: vec![p.clone(), p.clone(), Plan { priority: 1, ..p.clone()}], ..Config::default() };
    let p1 = Config { name: "prio ask2", tick: Ttl::from_secs(15), ticks: 4, workers: vec![p.clone(), Plan { asks: 2, ..p.clone() }, Plan { priority: 1, ..p.clone()}], ..Config::default() };
    let sl = Plan { slots: 2, queue: Some(2), ..Plan::default() };
    let sl0 = Config { name: "slots", workers: vec![sl.clone(), sl.clone(), Plan {slots: 1, ..sl.clone()}], ..Config::default() };
    let sl1 = Config { name: "slots222", workers: vec![sl.clone(), Plan { attempts: 2, ..sl.clone() }, Plan {queue: None, ..sl.clone()}], ..Config::default() };
    let th = Plan { steal_after: Some(1), attempts: 1, renewals: 1, ..Plan::default() };
    let t0 = Config { name: "steal", writes: 2, workers: vec![Plan { attempts: 2, ..th.clone() }, th.clone()], ..Config::default() };
    let t1 = Config { name: "steal q", writes: 2, workers: vec![Plan { steal_after: None, ..th.clone() }, Plan { queue: Some(2), asks: 2, ..th.clone()} ], ..Config::default() };
    let k = Plan { at_least: Some(2), queue: Some(2), ..Plan::default() };
    let k0 = Config { name: "kept", duplicates: 1, workers: vec![Plan { attempts: 2, ..k.clone() }, k.clone()], ..Config::default() };
    vec![excl, e2, e3, e4, e5, r0, r2, r3, q0, q1, q2, q3, s0, s1, sh, sh1, sh2, p0, p1, sl0, sl1, t0, t1, k0]
}
