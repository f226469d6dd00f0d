//! Check of the containment: the mode that commands get on this machine, and the modes that are
//! available on request.

use super::report::Check;
use crate::config;
use crate::run::{Contain, Machine};

const NAME: &str = "containment";

pub(super) fn containment(machine: &Machine) -> Check {
    match config::containment(None) {
        Ok(wanted) => describe(machine, wanted),
        Err(failure) => Check::warning(NAME, failure.message(), "no command will run until that is right"),
    }
}

fn describe(machine: &Machine, wanted: Contain) -> Check {
    let pidns = match &machine.pidns {
        Ok(()) => "--contain pidns is possible".to_owned(),
        Err(error) => format!("--contain pidns is not possible ({error})"),
    };
    match machine.mode(wanted) {
        Ok(Contain::Pidns) => Check::ok(NAME, "pidns: each command has a PID namespace of its own"),
        Ok(Contain::Cgroup) => {
            let base = machine.cgroup.as_ref().map(|base| base.display().to_string()).unwrap_or_default();
            Check::ok(NAME, format!("cgroup: each command has a cgroup of its own below {base}; {pidns}"))
        }
        Ok(_) => {
            let cgroup = match &machine.cgroup {
                Ok(_) => "--contain cgroup is possible".to_owned(),
                Err(error) => format!("no cgroup can be made ({error})"),
            };
            Check::ok(NAME, format!("none: commands are found by their parents; {cgroup}; {pidns}"))
        }
        Err(error) => {
            let wrong = format!("{} is set and not possible here: {error}", wanted.name());
            Check::warning(NAME, wrong, "no command will run; set contain to auto")
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;

    #[test]
    fn it_says_what_is_used_and_what_is_possible() {
        let no = || io::Error::from(io::ErrorKind::PermissionDenied);
        let rich = Machine { cgroup: Ok("/sys/fs/cgroup/a".into()), pidns: Ok(()) };
        let poor = Machine { cgroup: Err(no()), pidns: Err(no()) };
        let text = |machine, wanted| {
            let check = serde_json::to_value(describe(machine, wanted)).unwrap();
            check["detail"].as_str().unwrap().to_owned()
        };
        insta::assert_snapshot!(text(&rich, Contain::Auto), @"cgroup: each command has a cgroup of its own below /sys/fs/cgroup/a; --contain pidns is possible");
        insta::assert_snapshot!(text(&rich, Contain::None), @"none: commands are found by their parents; --contain cgroup is possible; --contain pidns is possible");
        insta::assert_snapshot!(text(&rich, Contain::Pidns), @"pidns: each command has a PID namespace of its own");
        insta::assert_snapshot!(text(&poor, Contain::Auto), @"none: commands are found by their parents; no cgroup can be made (permission denied); --contain pidns is not possible (permission denied)");
        insta::assert_snapshot!(text(&poor, Contain::Pidns), @"pidns is set and not possible here: permission denied");
    }
}
