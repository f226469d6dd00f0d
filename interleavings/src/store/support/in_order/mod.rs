//! Order of the calls for one key.

pub mod checks;
pub mod lost_turn;
pub mod overtaking;
mod subject {
    include!(concat!(env!("OUT_DIR"), "/in_order.rs"));
}
