//! TLS of a server, from the flags and from the settings.

use std::fs;
use std::path::Path;
use std::process::Stdio;

use rcgen::{CertificateParams, KeyPair};

use crate::support::{Sandbox, eventually, run};

use super::support::Served;

/// Writes a certificate for `localhost` that is its own CA, and its key.
fn certificate(folder: &Path, days: i64) {
    let ends = jiff::Timestamp::now() + jiff::SignedDuration::from_hours(24 * days);
    let ends = ends.to_zoned(jiff::tz::TimeZone::UTC);
    let mut params = CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
    let [month, day] = [ends.month(), ends.day()].map(|number| u8::try_from(number).unwrap());
    params.not_after = rcgen::date_time_ymd(i32::from(ends.year()), month, day);
    let key = KeyPair::generate().unwrap();
    fs::write(folder.join("cert.pem"), params.self_signed(&key).unwrap().pem()).unwrap();
    fs::write(folder.join("key.pem"), key.serialize_pem()).unwrap();
}

const SETTINGS: &str = "[tls]\ncert = \"cert.pem\"\nkey = \"key.pem\"\n";

fn serve(sandbox: &Sandbox, words: &[&str]) -> Served {
    let mut command = sandbox.command(["--json", "serve", "--listen", "127.0.0.1:0"]);
    Served::spawn(command.args(words).stdout(Stdio::piped()))
}

/// Runs the binary against a server.
fn through(sandbox: &Sandbox, served: &Served, query: &str, words: &str) -> crate::support::Ran {
    let url = format!("https://localhost:{}?{query}", served.address.port());
    run(sandbox.command(words.split_whitespace()).env("LEASEHOLD_STORE", url))
}

#[test]
fn a_server_with_a_certificate_speaks_only_tls() {
    let sandbox = Sandbox::new();
    certificate(sandbox.path(), 90);
    fs::write(sandbox.path().join("leasehold.toml"), SETTINGS).unwrap();
    let flags = ["--tls-cert", "cert.pem", "--tls-key", "key.pem"];
    for words in [&["--config", "leasehold.toml"][..], &flags] {
        let served = serve(&sandbox, words);
        eventually("ready", || through(&sandbox, &served, "ca=cert.pem", "locks list").code == 0);
        let ran = through(&sandbox, &served, "ca=cert.pem", "run job -- true");
        assert_eq!(ran.code, 0, "{ran:?}");
        let untrusted = through(&sandbox, &served, "", "locks list");
        assert_eq!(untrusted.code, 78, "{untrusted:?}");
        let plain =
            run(&mut sandbox.command(["locks", "list", "--store", &format!("http://{}", served.address)]));
        assert_ne!(plain.code, 0, "{plain:?}");
        served.signal("-TERM");
        assert_eq!(served.wait().code, 0);
    }
}

#[test]
fn a_certificate_that_is_renewed_is_used_without_a_restart() {
    let sandbox = Sandbox::new();
    certificate(sandbox.path(), 90);
    fs::copy(sandbox.path().join("cert.pem"), sandbox.path().join("old.pem")).unwrap();
    fs::write(sandbox.path().join("leasehold.toml"), SETTINGS).unwrap();
    let served = serve(&sandbox, &["--config", "leasehold.toml"]);
    eventually("ready", || through(&sandbox, &served, "ca=old.pem", "locks list").code == 0);
    certificate(sandbox.path(), 180);
    eventually("the new one is used", || through(&sandbox, &served, "ca=cert.pem", "locks list").code == 0);
    assert_eq!(through(&sandbox, &served, "ca=old.pem", "locks list").code, 78);
}

#[test]
fn check_reports_invalid_files_and_expiry() {
    let sandbox = Sandbox::new();
    certificate(sandbox.path(), 90);
    fs::write(sandbox.path().join("leasehold.toml"), SETTINGS).unwrap();
    let check = || sandbox.run("serve --config leasehold.toml --check");
    let good = check();
    assert_eq!((good.code, good.stderr.as_str()), (0, ""), "{good:?}");
    assert_eq!(sandbox.json("serve --config leasehold.toml --check")["tls"], true);

    certificate(sandbox.path(), 6);
    let soon = check();
    assert_eq!(soon.code, 0, "{soon:?}");
    assert!(soon.stderr.contains("warning: the TLS certificate expires in 5 days"), "{soon:?}");
    let json = sandbox.json("serve --config leasehold.toml --check");
    assert!(json["warning"].as_str().unwrap().contains("expires in 5 days"), "{json}");

    certificate(sandbox.path(), -3);
    let over = check();
    assert_eq!(over.code, 78, "{over:?}");
    assert!(over.stderr.contains("the TLS certificate expired 3 days ago"), "{over:?}");

    certificate(sandbox.path(), 90);
    fs::copy(sandbox.path().join("key.pem"), sandbox.path().join("other.pem")).unwrap();
    certificate(sandbox.path(), 90);
    fs::copy(sandbox.path().join("other.pem"), sandbox.path().join("key.pem")).unwrap();
    let other = check();
    assert_eq!(other.code, 78, "{other:?}");
    assert!(other.stderr.contains("is not that of the first certificate"), "{other:?}");
    fs::remove_file(sandbox.path().join("key.pem")).unwrap();
    let gone = check();
    assert!(gone.code == 78 && gone.stderr.contains("key.pem cannot be read"), "{gone:?}");
}

#[test]
fn missing_required_flags_are_named() {
    let sandbox = Sandbox::new();
    assert_eq!(sandbox.run("serve --tls-cert cert.pem --check").code, 64);
    let alone = sandbox.run("serve --tls-client-ca ca.pem --check");
    assert_eq!(alone.code, 64, "{alone:?}");
    assert!(alone.stderr.contains("--tls-cert and --tls-key"), "{alone:?}");
}

#[test]
fn a_reachable_server_without_tls_warns() {
    let sandbox = Sandbox::new();
    sandbox.ok("token new --name ada --role admin");
    certificate(sandbox.path(), 90);
    for (listen, more, warns) in [
        ("0.0.0.0:0", "", true),
        ("127.0.0.1:0", "", false),
        ("0.0.0.0:0", "--tls-cert cert.pem --tls-key key.pem", false),
    ] {
        let log = fs::File::create(sandbox.path().join("log")).unwrap();
        let words = format!("--json serve --listen {listen} {more}");
        let mut command = sandbox.command(words.split_whitespace());
        let served = Served::spawn(command.stdout(Stdio::piped()).stderr(log));
        served.signal("-TERM");
        served.wait();
        let said = fs::read_to_string(sandbox.path().join("log")).unwrap();
        assert_eq!(
            said.contains("without TLS") && said.contains("--tls-cert"),
            warns,
            "{listen} {more}: {said}"
        );
    }
}
