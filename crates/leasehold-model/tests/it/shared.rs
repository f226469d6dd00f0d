//! Machinery that the model checks of locks and of tasks share: sets of broken properties, the tests
//! of configurations, and the tests of mutants.

use std::collections::BTreeSet;
use std::fmt::{self, Debug};
use std::hash::Hash;
use std::marker::PhantomData;
use std::time::Instant;

use stateright::{Checker, HasDiscoveries, Model, Property as Check};

pub(crate) trait Property: Debug + Copy + Eq + Hash + Send + Sync + 'static {
    const ALL: &'static [Self];

    fn name(self) -> &'static str;

    /// Returns the set of this property alone.
    fn bit(self) -> u64;
}

/// Defines the enum `Property` of a model check, with the name of each property.
macro_rules! properties {
    ($($property:ident: $name:literal,)+) => {
        /// Property. The letters are those of docs/promises.md.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub(super) enum Property {
            $($property,)+
        }

        impl crate::shared::Property for Property {
            const ALL: &'static [Self] = &[$(Self::$property),+];

            fn name(self) -> &'static str {
                match self {
                    $(Self::$property => $name,)+
                }
            }

            fn bit(self) -> u64 {
                1 << self as u64
            }
        }
    };
}
pub(crate) use properties;

/// Defines one test per configuration: each explores it under the correct rules.
macro_rules! passes {
    ($($test:ident: $config:ident,)+) => {
        $(
            #[test]
            fn $test() {
                explore::<System>($config(), CORRECT);
            }
        )+
    };
}
pub(crate) use passes;

/// Properties that one step broke. Always empty under the correct rules, so that it adds no states.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Broken<P>(u64, PhantomData<P>);

impl<P> Default for Broken<P> {
    fn default() -> Self {
        Self(0, PhantomData)
    }
}

impl<P: Property> Debug for Broken<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let broken = P::ALL.iter().filter(|property| self.has(**property));
        f.debug_list().entries(broken.map(|property| property.name())).finish()
    }
}

impl<P: Property> Broken<P> {
    pub(crate) fn add(&mut self, property: P) {
        self.0 |= property.bit();
    }

    pub(crate) fn add_all(&mut self, others: Self) {
        self.0 |= others.0;
    }

    pub(crate) fn check(&mut self, property: P, holds: bool) {
        if !holds {
            self.add(property);
        }
    }

    fn has(self, property: P) -> bool {
        self.0 & property.bit() != 0
    }
}

/// Configuration under some rules, as far as the tests here use it.
pub(crate) trait System:
    Model<State: State, Action: Debug + Clone + PartialEq> + Send + Sync + 'static
{
    type Config;
    type Rules: Copy;
    type Property: Property;
    /// First word of the report on a configuration.
    const SUBJECT: &'static str;

    fn new(config: Self::Config, rules: Self::Rules, sought: Option<Self::Property>) -> Self;

    /// Returns the one property to look for; `None` for all of them.
    fn sought(&self) -> Option<Self::Property>;

    fn broken(state: &Self::State) -> Broken<Self::Property>;

    /// Returns the name of the configuration, and its maximum number of steps.
    fn name_and_depth(&self) -> (&'static str, Option<usize>);

    /// Returns the situations that must occur in the configuration and did not.
    fn uncovered(&self) -> Vec<impl Debug>;
}

pub(crate) trait State: Debug + Clone + PartialEq + Hash + Send + Sync + 'static {}

impl<T: Debug + Clone + PartialEq + Hash + Send + Sync + 'static> State for T {}

/// Returns the checks of every state: one property if one is sought, otherwise all of them at once.
/// One check instead of one per property, because the checker's bookkeeping for each costs more than
/// all the checks; a state contains the broken properties.
pub(crate) fn checks<S: System>(system: &S) -> Vec<Check<S>> {
    vec![match system.sought() {
        None => Check::always("every property", |_, state| S::broken(state) == Broken::default()),
        Some(property) => Check::always(property.name(), |system: &S, state| {
            system.sought().is_none_or(|property| !S::broken(state).has(property))
        }),
    }]
}

/// Visits every state of a configuration; or, if it has a bound, every state within it, nearest
/// first.
pub(crate) fn explore<S: System>(config: S::Config, rules: S::Rules) {
    let start = Instant::now();
    let system = S::new(config, rules, None);
    match system.name_and_depth().1 {
        Some(depth) => report(&system.checker().target_max_depth(depth).spawn_bfs().join(), start),
        None => report(&system.checker().spawn_dfs().join(), start),
    }
}

/// Prints the number of states, and fails unless every property holds.
fn report<S: System>(checker: &impl Checker<S>, start: Instant) {
    let (name, depth) = checker.model().name_and_depth();
    println!(
        "{} {name:<12} {:>9} states {:>8} unique {:>3} deep{} {:>6.1} s",
        S::SUBJECT,
        checker.state_count(),
        checker.unique_state_count(),
        checker.max_depth(),
        if depth.is_some() { " (bound)" } else { "        " },
        start.elapsed().as_secs_f64(),
    );
    checker.assert_properties();
    assert!(checker.is_done(), "{name}: some states were not visited");
    let uncovered = checker.model().uncovered();
    assert!(uncovered.is_empty(), "{name}: never occurred, so it was not tested: {uncovered:?}");
}

/// Wrong rules, the configuration that shows their fault, and the property that they break.
pub(crate) struct Mutant<S: System> {
    pub(crate) name: &'static str,
    pub(crate) rules: S::Rules,
    pub(crate) config: fn() -> S::Config,
    pub(crate) breaks: S::Property,
}

pub(crate) fn every_mutant_is_caught<S: System>(all: &[Mutant<S>]) {
    let missed: Vec<_> = all.iter().filter(|mutant| !is_caught(mutant)).map(|mutant| mutant.name).collect();
    assert!(missed.is_empty(), "not caught: {missed:#?}");
}

/// Without a mutant that breaks it, a property might not be checked at all.
pub(crate) fn every_property_catches_a_mutant<S: System>(all: &[Mutant<S>]) {
    let caught: Vec<_> = all.iter().map(|mutant| mutant.breaks).collect();
    let idle: Vec<_> = S::Property::ALL.iter().filter(|property| !caught.contains(property)).collect();
    assert!(idle.is_empty(), "no mutant breaks {idle:?}");
}

fn is_caught<S: System>(mutant: &Mutant<S>) -> bool {
    let system = S::new((mutant.config)(), mutant.rules, Some(mutant.breaks));
    let ((config, _), property) = (system.name_and_depth(), mutant.breaks.name());
    let until = HasDiscoveries::AnyOf(BTreeSet::from([property]));
    let checker = system.checker().finish_when(until).spawn_bfs().join();
    let caught = checker.discovery(property).is_some();
    println!(
        "mutant {:<52} {} {property:<52} {config:<12} {:>8} states",
        mutant.name,
        if caught { "breaks" } else { "MISSED" },
        checker.state_count(),
    );
    caught
}
