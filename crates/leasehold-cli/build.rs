//! Links the program to a fixed address where the dynamic linker would otherwise relocate it at every
//! start: see `docs/decisions/0041-how-the-program-is-linked.md`.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    let target = |name: &str| std::env::var(format!("CARGO_CFG_TARGET_{name}")).unwrap_or_default();
    if target("OS") == "linux" && target("ENV") == "gnu" {
        println!("cargo::rustc-link-arg-bins=-no-pie");
    }
}
