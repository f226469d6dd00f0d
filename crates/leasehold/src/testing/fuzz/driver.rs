//! Runs one target: the files of its corpus, then mutated inputs, up to the first one that fails.

#![expect(clippy::disallowed_methods, reason = "the time that an input takes is part of what is tested")]

use std::cell::Cell;
use std::collections::HashSet;
use std::fs::{self, File};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::os::unix::fs::FileExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Once, mpsc};
use std::time::{Duration, Instant};

use rustix::process::{Resource, Rlimit};
use rustix::time::{ClockId, clock_gettime};

use super::super::random::effort;
use super::Shape;
use super::mutator::Mutator;

/// Environment variable with the seconds for which each target runs, for a long run.
const SECONDS: &str = "LEASEHOLD_FUZZ_SECONDS";
/// Environment variable with the seed of the mutations.
const SEED: &str = "LEASEHOLD_FUZZ_SEED";
/// Maximum CPU time for one input. Inputs have at most 64 KiB.
const MAX_CPU: Duration = Duration::from_secs(3);
/// Time after which an input that has not ended is reported, and the process aborted.
const MAX_WAIT: Duration = Duration::from_mins(3);
/// Address space of the process in a long run: a length that is read from an input must not be
/// allocated before the bytes are there.
const MAX_MEMORY: u64 = 16 << 30;
/// Maximum number of inputs that are kept because their outcome was new, and their maximum size.
const MAX_KEPT: usize = 4096;
const MAX_KEPT_BYTES: usize = 4096;
/// Maximum number of runs to shorten an input that fails.
const MAX_SHORTENINGS: u32 = 1000;

/// Path of the corpus `tests/corpus/NAME` of the crate that calls it.
#[macro_export]
macro_rules! fuzz_corpus {
    ($name:literal) => {
        concat!(env!("CARGO_MANIFEST_DIR"), "/tests/corpus/", $name)
    };
}

/// Runs a target on all inputs of its corpus, and on inputs that are mutated from them: `inputs` of
/// them, or as many as fit into the time of a long run. A target panics if a property does not hold,
/// and returns the shape of its outcome.
///
/// Each file of the corpus is one input; each line of a file whose name ends in `.txt` is one. Panics
/// with the first input that fails, after saving it in the corpus.
pub fn fuzz(corpus: &str, inputs: u32, target: impl Fn(&[u8]) -> Shape) {
    let run = Run::new(Path::new(corpus), target);
    let known = run.corpus();
    assert!(!known.is_empty(), "{corpus} has no inputs");
    let mut shapes: HashSet<Shape> = known.iter().map(|input| run.check(input)).collect();
    let long = number(SECONDS).map(Duration::from_secs);
    let seed = number(SEED).unwrap_or_else(|| if long.is_some() { fastrand::u64(..) } else { 1 });
    if long.is_some() {
        let limit = Rlimit { current: Some(MAX_MEMORY), maximum: Some(MAX_MEMORY) };
        // A limit that is already lower stays.
        let _ = rustix::process::setrlimit(Resource::As, limit);
    }
    let mut mutator = Mutator::new(seed, known);
    let (start, mut count) = (Instant::now(), 0_u64);
    let most = u64::from(inputs) * u64::from(effort());
    while long.map_or(count < most, |long| start.elapsed() < long) {
        let input = mutator.next();
        let is_new = shapes.insert(run.check(&input));
        if is_new && shapes.len() < MAX_KEPT && input.len() <= MAX_KEPT_BYTES {
            mutator.keep(input);
        }
        count += 1;
    }
    let per_second = u128::from(count) * 1000 / start.elapsed().as_millis().max(1);
    println!("{}: {count} inputs, {per_second} per second, {} shapes, seed {seed}", run.test, shapes.len());
}

fn number(variable: &str) -> Option<u64> {
    std::env::var(variable).ok().and_then(|text| text.parse().ok())
}

struct Run<'a, T> {
    corpus: &'a Path,
    test: String,
    target: T,
    /// File with the current input, for an input that ends the process.
    current: File,
    current_path: PathBuf,
    started: Arc<AtomicU64>,
    /// Ends the watchdog when it is dropped.
    _watchdog: mpsc::Sender<()>,
}

impl<'a, T: Fn(&[u8]) -> Shape> Run<'a, T> {
    fn new(corpus: &'a Path, target: T) -> Self {
        silence_expected_panics();
        let test = std::thread::current().name().unwrap_or_default().to_owned();
        let file = format!("leasehold-fuzz-{}-{}.input", test.replace("::", "-"), std::process::id());
        let current_path = std::env::temp_dir().join(file);
        let current = File::create(&current_path).expect("the folder for temporary files is writable");
        let started = Arc::new(AtomicU64::new(0));
        let watchdog = watch(started.clone(), current_path.clone());
        Self { corpus, test, target, current, current_path, started, _watchdog: watchdog }
    }

    /// Returns the inputs of the corpus.
    fn corpus(&self) -> Vec<Vec<u8>> {
        let folder =
            fs::read_dir(self.corpus).unwrap_or_else(|error| panic!("{}: {error}", self.corpus.display()));
        let mut files: Vec<PathBuf> = folder.map(|entry| entry.expect("a readable folder").path()).collect();
        files.sort();
        let mut inputs = Vec::new();
        for file in files {
            let input = fs::read(&file).expect("a readable file");
            if file.extension().is_some_and(|extension| extension == "txt") {
                inputs.extend(input.split(|byte| *byte == b'\n').map(Vec::from));
            } else {
                inputs.push(input);
            }
        }
        inputs
    }

    /// Runs the target on one input; panics with a shorter input that fails, if this one does.
    fn check(&self, input: &[u8]) -> Shape {
        self.attempt(input).unwrap_or_else(|why| {
            let (input, why) = self.shortened(input.to_vec(), why);
            let mut hasher = DefaultHasher::new();
            input.hash(&mut hasher);
            let file = self.corpus.join(format!("failed-{:016x}", hasher.finish()));
            let saved = match fs::write(&file, &input) {
                Ok(()) => format!("It is saved: commit {}", file.display()),
                Err(error) => format!("It cannot be saved in {}: {error}", file.display()),
            };
            panic!(
                "{}: {why}\nThe input has {} bytes: \"{}\"\n{saved}",
                self.test,
                input.len(),
                input.escape_ascii().to_string().chars().take(2000).collect::<String>()
            )
        })
    }

    /// Runs the target on one input; returns the reason if it fails.
    fn attempt(&self, input: &[u8]) -> Result<Shape, String> {
        let length = u64::try_from(input.len()).unwrap_or(u64::MAX);
        // Best effort: the file is only for an input that ends the process.
        let _ = self.current.write_all_at(input, 0).and_then(|()| self.current.set_len(length));
        self.started.fetch_add(1, Ordering::Relaxed);
        let before = cpu_time();
        EXPECTED.set(true);
        let result = catch_unwind(AssertUnwindSafe(|| (self.target)(input)));
        EXPECTED.set(false);
        let took = cpu_time().saturating_sub(before);
        match result {
            Ok(_) if took > MAX_CPU => Err(format!("took {took:?} of CPU time, more than {MAX_CPU:?}")),
            Ok(shape) => Ok(shape),
            Err(panic) => Err(panic_text(&*panic)),
        }
    }

    /// Removes parts of an input for as long as it still fails.
    fn shortened(&self, mut input: Vec<u8>, mut why: String) -> (Vec<u8>, String) {
        let (mut part, mut runs) = (input.len() / 2, 0);
        while part > 0 && !why.starts_with("took ") {
            let mut at = 0;
            while at < input.len() && runs < MAX_SHORTENINGS {
                let end = (at + part).min(input.len());
                let shorter = [&input[..at], &input[end..]].concat();
                match self.attempt(&shorter) {
                    Err(reason) => (input, why) = (shorter, reason),
                    Ok(_) => at = end,
                }
                runs += 1;
            }
            part /= 2;
        }
        (input, why)
    }
}

impl<T> Drop for Run<'_, T> {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.current_path);
    }
}

/// Starts a thread that aborts the process if one input does not end. Dropping the returned sender
/// ends the thread.
fn watch(started: Arc<AtomicU64>, current: PathBuf) -> mpsc::Sender<()> {
    let (sender, ended) = mpsc::channel();
    std::thread::spawn(move || {
        let (mut last, mut since) = (0, Instant::now());
        while ended.recv_timeout(Duration::from_secs(1)) == Err(mpsc::RecvTimeoutError::Timeout) {
            let now = started.load(Ordering::Relaxed);
            if now != last {
                (last, since) = (now, Instant::now());
            } else if since.elapsed() > MAX_WAIT {
                eprintln!("an input has not ended for {MAX_WAIT:?}: {}", current.display());
                std::process::abort();
            }
        }
    });
    sender
}

fn cpu_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.try_into().unwrap_or_default()
}

thread_local! {
    /// Whether a panic of this thread is caught and reported with its input.
    static EXPECTED: Cell<bool> = const { Cell::new(false) };
}

/// Lets panics that are caught print nothing: shortening an input causes many.
fn silence_expected_panics() {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let other = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            if EXPECTED.get() {
                PANICKED_AT.set(panic.location().map(ToString::to_string));
            } else {
                other(panic);
            }
        }));
    });
}

thread_local! {
    static PANICKED_AT: Cell<Option<String>> = const { Cell::new(None) };
}

fn panic_text(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    let text = text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("a panic");
    format!("{text}\nat {}", PANICKED_AT.take().unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Fails for inputs that contain "fail".
    fn target(input: &[u8]) -> Shape {
        let text = String::from_utf8_lossy(input);
        assert!(!text.contains("fail"), "contains the word");
        Shape::of(&text.contains("fai"))
    }

    fn corpus(inputs: &str) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("inputs.txt"), inputs).unwrap();
        folder
    }

    fn failure(folder: &Path, inputs: u32) -> String {
        let result = catch_unwind(|| fuzz(folder.to_str().unwrap(), inputs, target));
        result.err().map(|panic| panic_text(&*panic)).unwrap_or_default()
    }

    #[test]
    fn a_failing_line_of_the_corpus_is_shortened_reported_and_saved() {
        let folder = corpus("good\nsome text that will fail somewhere");
        let text = failure(folder.path(), 0);
        assert!(text.contains("contains the word") && text.contains("has 4 bytes: \"fail\""), "{text}");
        let saved: Vec<_> = fs::read_dir(folder.path()).unwrap().map(|file| file.unwrap().path()).collect();
        let saved =
            saved.iter().find(|file| file.file_name().unwrap().to_str().unwrap().starts_with("failed-"));
        assert_eq!(fs::read(saved.unwrap()).unwrap(), b"fail");
    }

    #[test]
    fn a_mutation_is_found_that_fails() {
        let folder = corpus("fai\nl");
        assert!(failure(folder.path(), 0).is_empty());
        assert!(failure(folder.path(), 100_000).contains("contains the word"));
    }
}
