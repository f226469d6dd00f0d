//! The `leasehold` binary.

mod exit;
mod run;

use leasehold::model::{LockName, Mode, Priority, Slots, Ttl, parse_duration};

/// Stands in until the command line is parsed properly.
fn main() {
    let mut args = std::env::args_os().skip(1).collect::<Vec<_>>();
    let dashes = args.iter().position(|a| a == "--").unwrap();
    let command = args.split_off(dashes + 1);
    let mut plan = run::RunPlan {
        store_url: std::env::var("LEASEHOLD_STORE").unwrap_or_else(|_| "sqlite:".to_owned()),
        locks: Vec::new(),
        ttl: Ttl::from_secs(30),
        patience: run::Patience::FailFast,
        mode: Mode::Exclusive,
        slots: Slots::default(),
        priority: Priority::default(),
        steal_stale: None,
        renew_at: 0.33,
        kill_after: None,
        at_least: None,
        conflict_exit: exit::NOT_ACQUIRED,
        reason: None,
        holder: None,
        metadata: Vec::new(),
        command,
        quiet: false,
    };
    let mut words = args.into_iter().map(|a| a.into_string().unwrap());
    while let Some(word) = words.next() {
        match word.as_str() {
            "--" | "run" => {}
            "--store" => plan.store_url = words.next().unwrap(),
            "--ttl" => plan.ttl = Ttl::new(parse_duration(&words.next().unwrap()).unwrap()).unwrap(),
            "--kill-after" => plan.kill_after = Some(parse_duration(&words.next().unwrap()).unwrap()),
            "--with" => plan.locks.push(LockName::new(words.next().unwrap()).unwrap()),
            "--wait" => {
                let text = words.next().unwrap();
                plan.patience = match text.as_str() {
                    "forever" => run::Patience::Forever,
                    "0" => run::Patience::FailFast,
                    text => run::Patience::For(parse_duration(text).unwrap()),
                };
            }
            lock => plan.locks.push(LockName::new(lock).unwrap()),
        }
    }
    std::process::exit(run::run(&plan))
}
