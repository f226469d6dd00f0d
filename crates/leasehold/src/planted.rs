//! Test for a planted mistake, at the place of the rule that it breaks. Without the feature `testing`
//! it is the constant `false`.

#[cfg(feature = "testing")]
macro_rules! is_planted {
    ($mutant:ident) => {
        crate::store::simulation::is_planted(crate::store::simulation::Mutant::$mutant)
    };
}

#[cfg(not(feature = "testing"))]
macro_rules! is_planted {
    ($mutant:ident) => {
        false
    };
}
