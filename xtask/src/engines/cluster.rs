//! Redis Cluster of three nodes with a third of the slots each.

use anyhow::Result;

use super::environment::{Environment, free_ports};
use super::redis::{node, send};

const SLOTS: [&str; 3] = ["0 5460", "5461 10922", "10923 16383"];

pub(super) fn start(env: &mut Environment) -> Result<()> {
    let ports: [u16; 3] = free_ports()?;
    let buses: [u16; 3] = free_ports()?;
    let mut servers = Vec::new();
    for (number, (port, bus)) in ports.into_iter().zip(buses).enumerate() {
        let bus = bus.to_string();
        let settings = ["--cluster-enabled", "yes", "--cluster-port", &bus, "--cluster-node-timeout", "2000"];
        servers.push(node(env, &format!("redis-cluster-{}", number + 1), port, &settings)?);
    }
    for (number, (port, slots)) in ports.into_iter().zip(SLOTS).enumerate() {
        send(port, &format!("CLUSTER ADDSLOTSRANGE {slots}"))?;
        // Set explicitly: nodes that must agree on it first take longer to start.
        send(port, &format!("CLUSTER SET-CONFIG-EPOCH {}", number + 1))?;
    }
    for (port, bus) in ports.into_iter().zip(buses).skip(1) {
        send(ports[0], &format!("CLUSTER MEET 127.0.0.1 {port} {bus}"))?;
    }
    for (server, port) in servers.iter().zip(ports) {
        server.wait_until("joined its cluster", || {
            let info = send(port, "CLUSTER INFO").unwrap_or_default();
            info.contains("cluster_state:ok") && info.contains("cluster_known_nodes:3")
        })?;
    }
    let [first, second, third] = ports;
    env.export(
        "LEASEHOLD_TEST_REDIS_CLUSTER",
        format!("redis+cluster://127.0.0.1:{first}?nodes=127.0.0.1:{second},127.0.0.1:{third}"),
    );
    Ok(())
}
