//! Checks of packages: each is installed into an empty folder, and the first command of the README is run
//! with what is there.

use std::fs::{self, File};
use std::io::{BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};
use flate2::read::GzDecoder;
use serde_json::Value;
use sha2::{Digest, Sha256};

use crate::contents::{NAME, Release};
use crate::digest::hex;

/// First command of the README, after `--`.
const WORDS: [&str; 5] = ["run", "hello", "--", "echo", "only one of me at a time"];

/// Installs a package and runs it; returns what was done.
pub(crate) fn check(name: &str, file: &Path, release: &Release) -> Result<String> {
    let shown = "run hello -- echo \"only one of me at a time\"";
    ensure!(release.readme.contains(shown), "the first command of the README is not: {shown}");
    let folder = tempfile::tempdir().context("cannot create a temporary folder")?;
    let root = folder.path();
    let binary = match name {
        "tar" => {
            unpack(GzDecoder::new(File::open(file)?), root)?;
            root.join(format!("{NAME}-{}-{}", release.version, release.target)).join(NAME)
        }
        "deb" => install_deb(file, root)?,
        "rpm" => {
            let package =
                rpm::Package::parse(&mut BufReader::new(File::open(file)?)).context("cannot read it")?;
            package.verify_digests().context("its digests are wrong")?;
            let to = root.join("root");
            package.extract(&to).context("cannot extract it")?;
            to.join("usr/bin").join(NAME)
        }
        "wheel" => {
            let venv = root.join("venv");
            run(Command::new("python3").args(["-m", "venv"]).arg(&venv))?;
            run(Command::new(venv.join("bin/pip"))
                .args(["install", "--quiet", "--no-index", "--no-deps"])
                .arg(file))?;
            venv.join("bin").join(NAME)
        }
        "npm" => {
            let file = fs::canonicalize(file)?;
            let options = ["install", "--silent", "--offline", "--no-audit", "--no-fund", "--prefix"];
            run(Command::new("npm").args(options).arg(root).arg(file).current_dir(root))?;
            root.join("node_modules/.bin").join(NAME)
        }
        "image" => return check_image(file, root, release),
        _ => bail!("no check for {name}"),
    };
    first_success(&mut Command::new(&binary), &WORDS, root)?;
    Ok("installed into an empty folder; the first command of the README works".to_owned())
}

/// Runs the first command of the README, with a home of its own.
fn first_success(command: &mut Command, words: &[&str], home: &Path) -> Result<()> {
    for name in ["LEASEHOLD_STORE", "LEASEHOLD_CONFIG", "XDG_STATE_HOME", "XDG_CONFIG_HOME"] {
        command.env_remove(name);
    }
    let output = command.args(words).env("HOME", home).output();
    let output = output.with_context(|| format!("cannot start {}", command.get_program().display()))?;
    let printed = String::from_utf8_lossy(&output.stdout);
    let expected = words.last().context("the command has words")?;
    let is_as_expected = printed.trim() == *expected || printed.starts_with("leasehold ");
    ensure!(output.status.success() && is_as_expected, "it does not work: {output:?}");
    Ok(())
}

/// Installs with dpkg into an empty root; where there is no dpkg, unpacks the archives.
fn install_deb(file: &Path, root: &Path) -> Result<PathBuf> {
    let to = root.join("root");
    let has_dpkg = Command::new("dpkg").arg("--version").output().is_ok_and(|output| output.status.success());
    let is_root = fs::metadata("/proc/self").is_ok_and(|own| std::os::unix::fs::MetadataExt::uid(&own) == 0);
    if has_dpkg && is_root {
        for folder in ["info", "updates", "triggers"] {
            fs::create_dir_all(to.join("var/lib/dpkg").join(folder))?;
        }
        for name in ["status", "available"] {
            fs::write(to.join("var/lib/dpkg").join(name), "")?;
        }
        let options = ["--force-depends", "--force-script-chrootless", "--log=/dev/null"];
        run(Command::new("dpkg")
            .arg(format!("--root={}", to.display()))
            .args(options)
            .arg("--install")
            .arg(file))?;
        let query = ["--show", "--showformat=${Status}", NAME];
        let state = run(Command::new("dpkg-query").arg(format!("--root={}", to.display())).args(query))?;
        ensure!(state == "install ok installed", "dpkg says: {state}");
    } else {
        let mut archive = ar::Archive::new(File::open(file)?);
        let mut found = false;
        while let Some(member) = archive.next_entry() {
            let member = member.context("cannot read the archive")?;
            if member.header().identifier() == b"data.tar.gz" {
                unpack(GzDecoder::new(member), &to)?;
                found = true;
            }
        }
        ensure!(found, "it has no data");
    }
    Ok(to.join("usr/bin").join(NAME))
}

/// Checks the digests of an image, unpacks its layer and runs the binary with that as its root.
fn check_image(file: &Path, root: &Path, release: &Release) -> Result<String> {
    let layout = root.join("layout");
    unpack(File::open(file)?, &layout)?;
    let blob = |descriptor: &Value| -> Result<Vec<u8>> {
        let digest = descriptor["digest"].as_str().and_then(|digest| digest.strip_prefix("sha256:"));
        let digest = digest.context("a descriptor has no digest")?;
        let content = fs::read(layout.join("blobs/sha256").join(digest)).context("a blob is missing")?;
        ensure!(hex(&Sha256::digest(&content)) == digest, "the digest of a blob is wrong");
        ensure!(descriptor["size"] == content.len(), "the size of a blob is wrong");
        Ok(content)
    };
    let index: Value = serde_json::from_slice(&fs::read(layout.join("index.json"))?)?;
    let manifest: Value = serde_json::from_slice(&blob(&index["manifests"][0])?)?;
    let config: Value = serde_json::from_slice(&blob(&manifest["config"])?)?;
    let mut layer = Vec::new();
    GzDecoder::new(blob(&manifest["layers"][0])?.as_slice()).read_to_end(&mut layer)?;
    let digest = format!("sha256:{}", hex(&Sha256::digest(&layer)));
    ensure!(config["rootfs"]["diff_ids"][0] == digest, "the digest of the layer is wrong");
    let inside = root.join("root");
    unpack(layer.as_slice(), &inside)?;
    // There is no echo in the image: the command is leasehold itself.
    let program = config["config"]["Entrypoint"][0].as_str().context("it has no entry point")?;
    let words = [program, "run", "hello", "--", program, "--version"];
    let mut command = Command::new("unshare");
    command.args(["--map-root-user", "--mount", "--pid", "--fork", "--mount-proc"]);
    command.arg(format!("--root={}", inside.display()));
    first_success(&mut command, &words, Path::new("/var/lib/leasehold"))?;
    Ok(format!("digests are right; leasehold {} runs a command with the layer as its root", release.version))
}

fn unpack(archive: impl Read, to: &Path) -> Result<()> {
    fs::create_dir_all(to)?;
    let mut archive = tar::Archive::new(archive);
    archive.set_preserve_permissions(true);
    archive.unpack(to).context("cannot unpack it")
}

/// Runs an installer; returns what it printed.
fn run(command: &mut Command) -> Result<String> {
    let program = command.get_program().display().to_string();
    let output =
        command.output().with_context(|| format!("cannot start {program}: install it, or use --skip"))?;
    ensure!(output.status.success(), "{program} failed: {}", String::from_utf8_lossy(&output.stderr));
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}
