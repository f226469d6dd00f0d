//! Cluster of two nodes, of which one hands a slot over to the other, key by key.

use std::time::Duration;

use super::server::{Server, free_port};

/// Slots of each of two nodes.
const SLOTS: [[&str; 2]; 2] = [["0", "8191"], ["8192", "16383"]];

/// Slot of a Cluster that moves from one node to the other.
pub(super) struct MovingSlot {
    slot: String,
    from: Server,
    to: Server,
}

impl MovingSlot {
    /// Starts a Cluster whose slot of this key can move.
    pub(super) async fn of(key: &str) -> Self {
        let [from, to] = two_nodes().await;
        let mut moving = Self { slot: "0".to_owned(), from, to };
        moving.change_key(key).await;
        moving
    }

    /// Chooses the slot of this key instead, before the first slot moves.
    pub(super) async fn change_key(&mut self, key: &str) {
        let slot: u16 = self.from.command(&["CLUSTER", "KEYSLOT", key]).await.unwrap();
        if (slot < 8192) != (self.slot.parse::<u16>().unwrap() < 8192) {
            std::mem::swap(&mut self.from, &mut self.to);
        }
        self.slot = slot.to_string();
    }

    /// Returns the channels of both nodes that have subscribers.
    pub(super) async fn channels(&self) -> Vec<String> {
        let mut channels = Vec::new();
        for node in [&self.from, &self.to] {
            channels.extend(node.command::<Vec<String>>(&["PUBSUB", "SHARDCHANNELS"]).await.unwrap());
        }
        channels
    }

    pub(super) fn url(&self) -> String {
        format!("redis+cluster://127.0.0.1:{}?nodes=127.0.0.1:{}", self.from.port(), self.to.port())
    }

    /// Begins to move the slot; all of its keys stay for now.
    pub(super) async fn begin(&self) {
        let (from_id, to_id) = (id(&self.from).await, id(&self.to).await);
        set_slot(&self.to, &[&self.slot, "IMPORTING", &from_id]).await;
        set_slot(&self.from, &[&self.slot, "MIGRATING", &to_id]).await;
    }

    pub(super) async fn move_keys(&self, keys: &[String]) {
        let port = self.to.port().to_string();
        let mut arguments = vec!["MIGRATE", "127.0.0.1", port.as_str(), "", "0", "5000", "KEYS"];
        arguments.extend(keys.iter().map(String::as_str));
        assert_eq!(self.from.command::<String>(&arguments).await.unwrap(), "OK");
    }

    /// Moves the remaining keys and the slot.
    pub(super) async fn finish(&self) {
        let keys: Vec<String> =
            self.from.command(&["CLUSTER", "GETKEYSINSLOT", &self.slot, "100"]).await.unwrap();
        if !keys.is_empty() {
            self.move_keys(&keys).await;
        }
        let to_id = id(&self.to).await;
        for node in [&self.to, &self.from] {
            set_slot(node, &[&self.slot, "NODE", &to_id]).await;
        }
    }
}

async fn two_nodes() -> [Server; 2] {
    let buses = [free_port(), free_port()];
    let [one, two] = buses.map(|bus| format!("cluster-port {bus}"));
    let nodes = [
        Server::start(&["cluster-enabled yes", &one]).await,
        Server::start(&["cluster-enabled yes", &two]).await,
    ];
    for ((node, [first, last]), epoch) in nodes.iter().zip(SLOTS).zip(["1", "2"]) {
        node.command::<String>(&["CLUSTER", "ADDSLOTSRANGE", first, last]).await.unwrap();
        node.command::<String>(&["CLUSTER", "SET-CONFIG-EPOCH", epoch]).await.unwrap();
    }
    let (port, bus) = (nodes[1].port().to_string(), buses[1].to_string());
    nodes[0].command::<String>(&["CLUSTER", "MEET", "127.0.0.1", &port, &bus]).await.unwrap();
    let have_met = async {
        for node in &nodes {
            loop {
                let info: String = node.command(&["CLUSTER", "INFO"]).await.unwrap();
                if info.contains("cluster_state:ok") && info.contains("cluster_known_nodes:2") {
                    break;
                }
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        }
    };
    tokio::time::timeout(Duration::from_mins(1), have_met).await.expect("the nodes meet within a minute");
    nodes
}

async fn id(node: &Server) -> String {
    node.command(&["CLUSTER", "MYID"]).await.unwrap()
}

async fn set_slot(node: &Server, arguments: &[&str]) {
    let mut command = vec!["CLUSTER", "SETSLOT"];
    command.extend(arguments);
    node.command::<String>(&command).await.unwrap();
}
