//! Copies files of the library without their tests, and makes mutants of them: each has one change that
//! a check must find.

use std::path::Path;
use std::{env, fs};

/// Files whose parts are checked, in `src/` of the library.
const PARTS: [&str; 9] = [
    "client/tasks/worker/held_leases.rs",
    "client/tasks/worker/slots.rs",
    "store/redis/connection/batcher.rs",
    "store/support/batch_queue.rs",
    "store/support/in_order.rs",
    "store/support/mutex.rs",
    "store/support/wake/queues.rs",
    "store/support/wake/registry.rs",
    "store/support/wake/waiters.rs",
];

struct Mutant {
    name: &'static str,
    file: &'static str,
    /// Text that occurs once in the file, and its replacement.
    from: &'static str,
    to: &'static str,
}

const MUTANTS: [Mutant; 8] = [
    Mutant {
        name: "lost_turn",
        file: "store/support/in_order.rs",
        from: "waits.close();\n                waits.try_recv().ok()",
        to: "waits.close();\n                None",
    },
    Mutant {
        name: "overtaking",
        file: "store/support/in_order.rs",
        from: "Self::wait_for_turn(self.enqueue(key, VecDeque::push_back))",
        to: "Self::wait_for_turn(self.enqueue(key, VecDeque::push_front))",
    },
    Mutant {
        name: "lost_worker",
        file: "store/support/batch_queue.rs",
        from: "self.workers -= usize::from(stop);",
        to: "self.workers -= usize::from(stop && self.workers > 1);",
    },
    Mutant {
        name: "early_notify",
        file: "store/support/wake/waiters.rs",
        from: "*mutex::lock(&self.granted) = Some(granted);\n        self.notify();",
        to: "self.notify();\n        *mutex::lock(&self.granted) = Some(granted);",
    },
    Mutant {
        name: "stale_grant",
        file: "store/support/wake/waiters.rs",
        from: "let last_request = mutex::lock(&slot.last_request);\n        match *last_request {\n            Some((number, since)) if is_newer_than",
        to: "let last_request = *mutex::lock(&slot.last_request);\n        match last_request {\n            Some((number, since)) if is_newer_than",
    },
    Mutant {
        name: "kept_notification",
        file: "store/support/wake/queues.rs",
        from: "if self.take_notification() {",
        to: "if false {",
    },
    Mutant {
        name: "unlocked_look",
        file: "client/tasks/worker/held_leases.rs",
        from: "let was_removed = held.removed.as_ref().is_some_and(|removed| removed.contains(&(id, token)));",
        to: "let was_removed = held.removed.as_ref().is_some_and(|removed| removed.contains(&(id, token)));\n        drop(held);\n        let held = self.held();",
    },
    Mutant {
        name: "unguarded_drop",
        file: "store/redis/connection/batcher.rs",
        from: "let _handing_over = lock(&self.batcher.handing_over);",
        to: "",
    },
];

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    for file in PARTS {
        let name = Path::new(file).file_stem().expect("a file has a name");
        write(&name.to_string_lossy(), &part(file));
    }
    for Mutant { name, file, from, to } in MUTANTS {
        let text = part(file);
        let times = text.matches(from).count();
        assert_eq!(times, 1, "{file} has the text that the mutant {name} changes {times} times: {from}");
        write(name, &text.replace(from, to));
    }
}

/// Returns the code of a file without the comment of the file, because it is included in a module, and
/// without its tests, which need the real primitives.
fn part(file: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../crates/leasehold/src").join(file);
    println!("cargo::rerun-if-changed={}", path.display());
    let text = fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let code = text.split("\n#[cfg(test)]\nmod ").next().unwrap_or_default();
    let lines: Vec<_> = code.lines().skip_while(|line| line.starts_with("//!")).collect();
    lines.join("\n") + "\n"
}

fn write(name: &str, text: &str) {
    let target = Path::new(&env::var("OUT_DIR").expect("cargo sets OUT_DIR")).join(format!("{name}.rs"));
    fs::write(&target, text).unwrap_or_else(|error| panic!("{}: {error}", target.display()));
}
