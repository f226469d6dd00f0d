//! Processes of a simulation, with their loops and workers, and the faults of whole processes.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use leasehold::Worker;
use leasehold_torture::history::Event;
use tokio::task::JoinSet;

use crate::guards::{GuardLoop, Wants};
use crate::network::Network;
use crate::process::Process;
use crate::tasks;
use crate::world::World;

/// Processes of a simulation.
pub(crate) struct Processes {
    world: Arc<World>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    last: u32,
    all: BTreeMap<u32, Arc<Process>>,
    loops: JoinSet<()>,
    workers: Vec<(u32, Worker)>,
}

impl Processes {
    pub(crate) fn new(world: Arc<World>) -> Arc<Self> {
        Arc::new(Self { world, state: Mutex::default() })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn get(&self, number: u32) -> Option<Arc<Process>> {
        self.state().all.get(&number).cloned()
    }

    /// Returns the processes that are not killed.
    pub(crate) fn running(&self) -> Vec<Arc<Process>> {
        self.state().all.values().filter(|process| !process.is_killed()).cloned().collect()
    }

    /// Starts another process with its loops.
    pub(crate) fn start_another(&self) {
        let mut state = self.state();
        state.last += 1;
        let number = state.last;
        self.world.record(0, Event::Started { worker: number });
        let process = Process::new(self.world.clone(), number);
        let leasehold = Network::connect(&process).expect("a simulated client starts no threads");
        state.all.insert(number, process.clone());
        let seed = |at: u64| self.world.plan.seed ^ (u64::from(number) << 32) ^ (at << 16);
        let guard_loop = |at| GuardLoop {
            process: process.clone(),
            leasehold: leasehold.clone(),
            rng: fastrand::Rng::with_seed(seed(at)),
        };
        for (at, wants) in
            [(1, Wants::Hot), (2, Wants::Hot), (3, Wants::Several), (4, Wants::Shared), (5, Wants::Slots)]
        {
            state.loops.spawn(process.pausing.run(guard_loop(at).run(wants)));
        }
        state.loops.spawn(process.pausing.run(guard_loop(6).take_by_force()));
        if self.world.plan.tasks {
            let (loops, worker) = tasks::start(&process, &leasehold, seed(7));
            for work in loops {
                state.loops.spawn(process.pausing.run(work));
            }
            state.workers.push((number, worker));
        }
        // The worker of a killed process is dropped: nothing that it does then reaches the store.
        let State { all, workers, .. } = &mut *state;
        workers.retain(|(number, _)| all.get(number).is_some_and(|process| !process.is_killed()));
    }

    /// Resolves when the loops of all processes have ended.
    pub(crate) async fn ended(&self) {
        let mut loops = std::mem::take(&mut self.state().loops);
        while loops.join_next().await.is_some() {}
    }

    /// Stops the workers.
    pub(crate) async fn stop(&self) {
        let workers = std::mem::take(&mut self.state().workers);
        for (_, worker) in workers {
            worker.stop(Duration::from_secs(1)).await;
        }
    }
}

/// Injects faults of whole processes until the simulation drains: pauses, outages of the network, kills.
pub(crate) async fn inject_faults(world: Arc<World>, processes: Arc<Processes>) {
    let mut rng = fastrand::Rng::with_seed(world.plan.seed ^ 0xFA);
    loop {
        tokio::time::sleep(world.plan.fault_interval.mul_f64(2.0 * rng.f64())).await;
        if world.is_draining() {
            return;
        }
        let running = processes.running();
        let Some(process) = running.get(rng.usize(..running.len().max(1))) else { continue };
        let time = world.plan.ttl.mul_f64(0.1 + 2.4 * rng.f64());
        match rng.u8(0..5) {
            0 | 1 => process.pause(time).await,
            2 | 3 => process.cut_off(time),
            _ => {
                process.kill();
                tokio::time::sleep(Duration::from_millis(rng.u64(0..30_000))).await;
                processes.start_another();
            }
        }
    }
}
