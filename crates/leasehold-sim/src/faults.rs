//! Faults of whole processes: pauses, outages of the network, kills.

use std::sync::Arc;
use std::time::Duration;

use crate::processes::Processes;
use crate::world::World;

/// Injects faults until the simulation drains.
pub(crate) async fn run(world: Arc<World>, processes: Arc<Processes>) {
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
