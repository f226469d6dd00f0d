//! `cargo xtask simulate`: builds the simulation as a release and runs it.

use std::ffi::OsString;
use std::path::Path;
use std::process::ExitCode;

use anyhow::Result;

use crate::cargo::{cargo, start, wait};

pub(crate) fn run(root: &Path, args: &[OsString]) -> Result<ExitCode> {
    let mut simulation = cargo(root, ["run", "--release", "--quiet", "-p", "leasehold-sim", "--"]);
    simulation.args(args);
    wait(&mut start(&mut simulation)?).map(ExitCode::from)
}
