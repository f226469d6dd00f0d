//! Tests of the writer thread: the order of jobs, and errors of single operations.

use super::*;
use crate::model::{Acquire, Holder, LeaseId, LockRequest, Release, Sweep, Ttl};
use crate::store::sqlite::options::Durability;

/// Number of reads after which no more are sent.
const MAX_READS: usize = 200;

/// Sends a read that sends the next one before it ends.
fn send_read(shared: &Arc<SharedConnection>, jobs: &mpsc::Sender<Job>, reads: &Arc<AtomicUsize>) {
    let next = (shared.clone(), jobs.clone(), reads.clone());
    let read = move |_: &mut Database| {
        let (shared, jobs, reads) = next;
        std::thread::sleep(Duration::from_millis(1));
        if reads.fetch_add(1, Ordering::SeqCst) < MAX_READS {
            send_read(&shared, &jobs, &reads);
        }
    };
    send(shared, jobs, Job::Read(Box::new(read)));
}

fn name(name: &str) -> LockName {
    LockName::new(name).unwrap()
}

fn acquire(number: u128) -> LockOp {
    let lease_id = LeaseId::from_uuid(uuid::Uuid::from_u128(number));
    let request = LockRequest::new(lease_id, Holder::new("ada").unwrap(), Ttl::from_secs(60));
    LockOp::Acquire(Acquire { request: Arc::new(request), queue: None, steal_after: None })
}

fn send(shared: &SharedConnection, jobs: &mpsc::Sender<Job>, job: Job) {
    shared.queued_jobs.fetch_add(1, Ordering::SeqCst);
    jobs.send(job).unwrap();
}

#[test]
fn reads_without_end_do_not_delay_a_write() {
    let folder = tempfile::tempdir().unwrap();
    let writer = Writer::open(&SqliteOptions::new(folder.path().join("a.db"))).unwrap();
    let (jobs, queue) = mpsc::channel();
    let reads = Arc::new(AtomicUsize::new(0));
    let reads_before = reads.clone();
    let options = WriteOptions { weight: 1, always_sync: false };
    let (request, answer) = write_request(options, move |_| Ok(reads_before.load(Ordering::SeqCst)));
    send(&writer.shared, &jobs, Job::Write(request));
    send_read(&writer.shared, &jobs, &reads);
    drop(jobs);
    writer.shared.run_writer_thread(&queue);
    let reads_before = answer.blocking_recv().unwrap().unwrap();
    assert!(reads_before < MAX_READS / 2, "{reads_before} reads before the write");
    assert!(reads.load(Ordering::SeqCst) > MAX_READS, "the reads continued");
}

/// Maintenance may wait for other processes for a long time.
#[test]
fn maintenance_begins_after_the_answers_of_earlier_operations() {
    let folder = tempfile::tempdir().unwrap();
    let mut options = SqliteOptions::new(folder.path().join("a.db"));
    options.durability = Durability::Full;
    let writer = Writer::open(&options).unwrap();
    // Reserves tokens, which are synced within the commit.
    lock(&writer.shared.database).commit(&[(&name("one"), &acquire(1))]).unwrap();
    let (jobs, queue) = mpsc::channel();
    let call = LockCall { name: name("two"), op: acquire(2), since: BootInstant::now() };
    let (apply, mut answer) = Pending::new(call);
    send(&writer.shared, &jobs, Job::Apply(apply));
    let (tell, told) = mpsc::channel();
    let maintain = move |_: &mut Database| tell.send(answer.try_recv().is_ok()).unwrap();
    send(&writer.shared, &jobs, Job::Maintain(Box::new(maintain)));
    drop(jobs);
    writer.shared.run_writer_thread(&queue);
    assert!(told.recv().unwrap());
}

#[test]
fn a_lock_that_cannot_be_read_fails_only_its_own_operations() {
    let folder = tempfile::tempdir().unwrap();
    let writer = Writer::open(&SqliteOptions::new(folder.path().join("a.db"))).unwrap();
    let mut database = lock(&writer.shared.database);
    let sql = "INSERT INTO leasehold_locks (name, record) VALUES ('bad', 'not JSON')";
    database.conn.execute(sql, []).unwrap();
    let (mut ops, mut answers) = (Vec::new(), Vec::new());
    for name in ["one", "bad", "two"] {
        let (name, op) = (LockName::new(name).unwrap(), LockOp::Sweep(Sweep::default()));
        let (apply, answer) = Pending::new(LockCall { name, op, since: BootInstant::now() });
        ops.push(apply);
        answers.push(answer);
    }
    assert!(writer.shared.commit(&mut database, &mut ops).is_empty());
    let answers = answers.into_iter().map(|answer| answer.blocking_recv().unwrap().is_ok());
    assert_eq!(answers.collect::<Vec<_>>(), [true, false, true]);
}

/// Lets this process need a turn for its next transaction, as if it had written many while others write.
fn meet_writers(shared: &SharedConnection) {
    let turn = &mut lock(&shared.database).turn;
    let later = BootInstant::now().plus(Duration::from_mins(1));
    turn.met_writer(later);
    // The next transaction follows the last of these in time, however long it takes to come.
    (0..100).for_each(|_| turn.record_request(later));
}

fn take_turn(shared: &SharedConnection) {
    meet_writers(shared);
    let turn = &mut lock(&shared.database).turn;
    while !turn.is_held() {
        turn.wait();
    }
}

#[cfg(target_os = "linux")]
#[test]
fn callers_use_a_turn_and_wait_for_the_next_on_the_writer_thread() {
    let folder = tempfile::tempdir().unwrap();
    let writer = Writer::open(&SqliteOptions::new(folder.path().join("a.db"))).unwrap();
    let shared = &writer.shared;
    let of_this_process = |number, queue| {
        let LockOp::Acquire(Acquire { request, .. }) = acquire(number) else { unreachable!() };
        let request = LockRequest { process: crate::store::this_process(), ..LockRequest::clone(&request) };
        LockOp::Acquire(Acquire { request: Arc::new(request), queue, steal_after: None })
    };
    let ttl = Some(Ttl::from_secs(60));
    let apply = |op: &LockOp| shared.apply_inline(&name("one"), op, BootInstant::now()).map(Result::unwrap);
    // The first transaction reserves tokens, and waits for the disk.
    lock(&shared.database).commit(&[(&name("other"), &of_this_process(1, None))]).unwrap();
    take_turn(shared);
    let Some(Outcome::Granted(lease)) = apply(&of_this_process(2, None)) else { panic!("not granted") };
    lock(&shared.database).turn.end();
    meet_writers(shared);
    assert!(apply(&of_this_process(3, ttl)).is_none(), "the next turn must be waited for");
    take_turn(shared);
    assert!(matches!(apply(&of_this_process(3, ttl)), Some(Outcome::Queued(_))));
    take_turn(shared);
    let release =
        LockOp::Release(Release { lease_id: lease.request.lease_id, token: lease.token, at_least: None });
    assert!(matches!(apply(&release), Some(Outcome::Released(_))));
    assert!(!lock(&shared.database).turn.is_held(), "the waiter writes next, perhaps in another process");
}

#[test]
fn the_writer_thread_ends_an_idle_turn() {
    let folder = tempfile::tempdir().unwrap();
    let writer = Writer::open(&SqliteOptions::new(folder.path().join("a.db"))).unwrap();
    take_turn(&writer.shared);
    lock(&writer.shared.database).turn.record_begin();
    let (jobs, queue) = mpsc::channel();
    let shared = writer.shared.clone();
    let thread = std::thread::spawn(move || shared.run_writer_thread(&queue));
    send(&writer.shared, &jobs, Job::ShrinkLog);
    let end = BootInstant::now().plus(Duration::from_mins(1));
    while lock(&writer.shared.database).turn.is_held() {
        assert!(BootInstant::now() < end, "the turn must end");
        std::thread::yield_now();
    }
    drop(jobs);
    thread.join().unwrap();
}
