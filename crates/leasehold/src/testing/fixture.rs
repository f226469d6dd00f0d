//! A fresh engine with two clients and a clock that moves by hand.

use std::any::Any;
use std::sync::Arc;
use std::time::Duration;

use super::Player;
use crate::model::LockName;
use crate::store::{Clock, Store};

/// A fresh engine, seen by two clients, with a clock that moves only by hand.
pub struct Fixture {
    /// One client.
    pub one: Arc<dyn Store>,
    /// Another client of the same engine.
    pub two: Arc<dyn Store>,
    /// The time of both.
    pub clock: Clock,
    _kept: Box<dyn Any + Send>,
}

impl Fixture {
    /// Puts a fixture together; `kept` is dropped with it, such as a temporary folder.
    pub fn new(one: Arc<dyn Store>, two: Arc<dyn Store>, clock: Clock, kept: impl Any + Send) -> Self {
        Self { one, two, clock, _kept: Box::new(kept) }
    }

    /// Lets time pass.
    pub fn pass(&self, millis: u64) {
        self.clock.advance(Duration::from_millis(millis));
    }

    /// Somebody who asks for `lock` over one of the two clients, by turns.
    pub fn player(&self, number: u128, lock: &str) -> Player {
        let store = if number.is_multiple_of(2) { &self.two } else { &self.one };
        Player::new(store.clone(), number, LockName::new(lock).expect("a good name in a test"))
    }

    /// Several who ask for the same lock.
    pub fn players<const N: usize>(&self, lock: &str) -> [Player; N] {
        std::array::from_fn(|number| self.player(number as u128 + 1, lock))
    }
}
