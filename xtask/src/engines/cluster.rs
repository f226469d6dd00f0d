//! A Redis Cluster of three nodes, a third of the slots each.

use anyhow::Result;

use super::lab::{Lab, free_ports};
use super::redis::{ask, node};

const SLOTS: [&str; 3] = ["0 5460", "5461 10922", "10923 16383"];

pub(super) fn start(lab: &mut Lab) -> Result<()> {
    let ports: [u16; 3] = free_ports()?;
    let buses: [u16; 3] = free_ports()?;
    let mut servers = Vec::new();
    for (number, (port, bus)) in ports.into_iter().zip(buses).enumerate() {
        let bus = bus.to_string();
        let settings = ["--cluster-enabled", "yes", "--cluster-port", &bus, "--cluster-node-timeout", "2000"];
        servers.push(node(lab, &format!("redis-cluster-{}", number + 1), port, &settings)?);
    }
    for (number, (port, slots)) in ports.into_iter().zip(SLOTS).enumerate() {
        ask(port, &format!("CLUSTER ADDSLOTSRANGE {slots}"))?;
        // Different from the start: nodes that have to agree on it first take longer to get ready.
        ask(port, &format!("CLUSTER SET-CONFIG-EPOCH {}", number + 1))?;
    }
    for (port, bus) in ports.into_iter().zip(buses).skip(1) {
        ask(ports[0], &format!("CLUSTER MEET 127.0.0.1 {port} {bus}"))?;
    }
    for (server, port) in servers.iter().zip(ports) {
        server.until("joined its cluster", || {
            let info = ask(port, "CLUSTER INFO").unwrap_or_default();
            info.contains("cluster_state:ok") && info.contains("cluster_known_nodes:3")
        })?;
    }
    let [first, second, third] = ports;
    lab.export(
        "LEASEHOLD_TEST_REDIS_CLUSTER",
        format!("redis+cluster://127.0.0.1:{first}?nodes=127.0.0.1:{second},127.0.0.1:{third}"),
    );
    Ok(())
}
