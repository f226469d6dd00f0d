//! The checkers and a general linearizability checker agree on random histories of a lock and its
//! resource, with and without violations.
//!
//! An acquire takes effect between its request and its response, and a lease ends between the
//! request and the response of its release, or at its expiry. With these times a history has no
//! violation exactly if some order of the effects is that of a single lock.

use leasehold_torture::history::{Event, Mode, Record};
use leasehold_torture::{History, Property, check};
use stateright::semantics::{ConsistencyTester, LinearizabilityTester, SequentialSpec};

use super::checkers::header;

/// A lock with a fence: the general checker searches for an order in which each answer is right.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
struct Lock {
    holder: Option<u64>,
    newest: u64,
    fence: u64,
    value: u64,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Op {
    Acquire,
    End(u64),
    Read(u64),
    Write(u64, u64),
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Ret {
    Granted(u64),
    Ended,
    Value(u64),
}

impl SequentialSpec for Lock {
    type Op = Op;
    type Ret = Ret;

    fn invoke(&mut self, _: &Op) -> Ret {
        unreachable!("every operation has an answer")
    }

    fn is_valid_step(&mut self, op: &Op, ret: &Ret) -> bool {
        match (op, ret) {
            (Op::Acquire, Ret::Granted(token)) => {
                let is_valid = self.holder.is_none() && *token > self.newest;
                (self.holder, self.newest) = (Some(*token), *token);
                is_valid
            }
            (Op::End(token), Ret::Ended) => self.holder.take() == Some(*token),
            (Op::Read(token), Ret::Value(value)) => {
                let is_valid = *token >= self.fence && *value == self.value;
                self.fence = *token;
                is_valid
            }
            (Op::Write(token, seen), Ret::Value(value)) => {
                let is_valid = *token >= self.fence && *seen == self.value;
                (self.fence, self.value) = (*token, *value);
                is_valid
            }
            _ => false,
        }
    }
}

/// How a lease ends.
#[derive(Clone, Copy)]
enum End {
    Release,
    Expiry,
    Force,
    Kill,
}

/// One lease, with its times in milliseconds.
#[derive(Clone, Copy)]
struct Holding {
    requested: u64,
    granted: u64,
    read: u64,
    written: u64,
    ended: u64,
    released: u64,
    token: u64,
    seen: u64,
    end: End,
}

/// Returns leases that follow each other as a lock grants them. Requests overlap with earlier leases.
fn holdings(rng: &mut fastrand::Rng) -> Vec<Holding> {
    let (mut now, mut token) = (100, 0);
    (0..rng.usize(2..6))
        .map(|number| {
            let mut after = |most: u64| {
                now += rng.u64(2..most);
                now
            };
            let granted = after(20);
            let (read, written, ended) = (after(5), after(5), after(20));
            token += rng.u64(1..3);
            let end = [End::Release, End::Expiry, End::Force, End::Kill][rng.usize(..4)];
            let (requested, released) = (granted - rng.u64(1..80), ended + rng.u64(1..10));
            let seen = number as u64;
            Holding { requested, granted, read, written, ended, released, token, seen, end }
        })
        .collect()
}

/// Changes one number, which often makes a violation.
fn spoil(holdings: &mut [Holding], rng: &mut fastrand::Rng) {
    let (one, other) = (rng.usize(..holdings.len()), rng.usize(..holdings.len()));
    match rng.u8(0..5) {
        // An end that comes too late: the next holder may already have the lock.
        0 => {
            let late = rng.u64(1..40);
            holdings[one].ended += late;
            holdings[one].released += late;
        }
        1 => (holdings[one].token, holdings[other].token) = (holdings[other].token, holdings[one].token),
        2 => holdings[one].token = holdings[other].token,
        3 => holdings[one].seen = holdings[other].seen,
        _ => {
            // The response, and all that follows, comes too early.
            let early = rng.u64(1..30).min(holdings[one].granted - 1);
            let Holding { requested, granted, read, written, .. } = &mut holdings[one];
            for time in [requested, granted, read, written] {
                *time = time.saturating_sub(early);
            }
        }
    }
}

/// Events in the order of their times. Equal times are moved apart, so that both checkers see the
/// same order.
fn times(holdings: &[Holding]) -> Vec<(usize, Step)> {
    let mut times = Vec::new();
    for (number, holding) in holdings.iter().enumerate() {
        let Holding { requested, granted, read, written, ended, released, .. } = *holding;
        let steps = [
            (requested, Step::Requested),
            (granted, Step::Granted),
            (read, Step::Read),
            (written, Step::Written),
            (ended, Step::Ended),
            (released, Step::Released),
        ];
        times.extend(steps.map(|(at, step)| (at, number, step)));
    }
    times.sort_by_key(|(at, number, step)| (*at, *number, *step));
    times.into_iter().map(|(_, number, step)| (number, step)).collect()
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Step {
    Requested,
    Granted,
    Read,
    Written,
    Ended,
    Released,
}

/// The history as torture records it: one process for each lease.
fn recorded(holdings: &[Holding], steps: &[(usize, Step)]) -> History {
    let at = |position: usize| 1000 * (position as u64 + 1);
    let mut records = Vec::new();
    for (position, (number, step)) in steps.iter().enumerate() {
        let holding = holdings[*number];
        let process = u32::try_from(*number).unwrap() + 1;
        let (op, lock, token) = (1, "l".to_owned(), holding.token);
        // The end of an expired lease is known in advance.
        let end = steps.iter().position(|step| *step == (*number, Step::Ended)).unwrap();
        let until = if matches!(holding.end, End::Expiry) { at(end) } else { u64::MAX };
        let sink = |seen, value| Event::Sink {
            worker: process,
            op,
            lock: lock.clone(),
            token,
            seen,
            value,
            accepted: true,
        };
        let kill = Event::Fault { worker: process, fault: "kill".into(), millis: 0 };
        let event = match (step, holding.end) {
            (Step::Requested, _) => Event::Acquire { op, lock, mode: Mode::Exclusive },
            (Step::Granted, _) => Event::Granted { op, lease: process.to_string(), token, until },
            (Step::Read, _) => sink(None, holding.seen),
            (Step::Written, _) => sink(Some(holding.seen), holding.seen + 1),
            (Step::Ended, End::Release) => Event::Ended { op, lost: false },
            (Step::Ended, End::Force) => Event::Force { op: 9, lock, token },
            (Step::Ended, End::Kill) => kill,
            (Step::Ended, End::Expiry) | (Step::Released, _) => continue,
        };
        records.push(Record { at: at(position), process, event });
    }
    History::new(header(), records)
}

/// Whether the general checker finds an order of the operations.
fn is_linearizable(holdings: &[Holding], steps: &[(usize, Step)]) -> bool {
    let mut tester = LinearizabilityTester::new(Lock::default());
    for (number, step) in steps {
        let Holding { token, seen, .. } = holdings[*number];
        // The lease, and its use of the resource, which takes effect at once.
        let (lease, resource) = (2 * number, 2 * number + 1);
        let done = match step {
            Step::Requested => tester.on_invoke(lease, Op::Acquire).map(drop),
            Step::Granted => tester.on_return(lease, Ret::Granted(token)).map(drop),
            Step::Read => tester.on_invret(resource, Op::Read(token), Ret::Value(seen)).map(drop),
            Step::Written => {
                tester.on_invret(resource, Op::Write(token, seen), Ret::Value(seen + 1)).map(drop)
            }
            Step::Ended => tester.on_invoke(lease, Op::End(token)).map(drop),
            Step::Released => tester.on_return(lease, Ret::Ended).map(drop),
        };
        done.unwrap();
    }
    tester.is_consistent()
}

#[test]
fn a_general_checker_has_the_same_opinion() {
    let (mut sound, mut broken) = (0, 0);
    for seed in 0..1000 {
        let mut rng = fastrand::Rng::with_seed(seed);
        let mut holdings = holdings(&mut rng);
        for _ in 0..rng.usize(..3) {
            spoil(&mut holdings, &mut rng);
        }
        let steps = times(&holdings);
        // A change of times may have put a response before its request: that is no history.
        let position = |step| steps.iter().position(|other| *other == step).unwrap();
        let is_ordered = (0..holdings.len()).all(|number| {
            let order =
                [Step::Requested, Step::Granted, Step::Read, Step::Written, Step::Ended, Step::Released];
            order.is_sorted_by_key(|step| position((number, *step)))
        });
        if !is_ordered {
            continue;
        }
        let checked = check(&recorded(&holdings, &steps));
        let found: Vec<Property> = checked
            .iter()
            .filter(|checked| !checked.violations.is_empty())
            .map(|checked| checked.property)
            .filter(|property| [Property::Exclusion, Property::Fencing].contains(property))
            .collect();
        let is_linearizable = is_linearizable(&holdings, &steps);
        assert_eq!(found.is_empty(), is_linearizable, "seed {seed}: {found:?} {checked:#?}");
        if is_linearizable { sound += 1 } else { broken += 1 }
    }
    assert!(sound > 200 && broken > 200, "{sound} histories without a violation, {broken} with one");
}
