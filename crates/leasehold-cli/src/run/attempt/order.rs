//! What a keeper is told before it starts the command: five numbers, the variables, the payload.

use std::io::{self, Read};
use std::time::Duration;

use leasehold::Moment;

use crate::run::timing::Timing;

/// The beginning of an attempt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Order {
    /// Until when the lease is valid.
    pub(super) valid_until: Moment,
    pub(super) timing: Timing,
    /// `NAME=value`, each followed by a NUL.
    pub(super) variables: Vec<u8>,
    /// For the command's stdin.
    pub(super) payload: Vec<u8>,
}

impl Order {
    pub(super) fn to_bytes(&self) -> Vec<u8> {
        let numbers = [
            self.valid_until.as_micros(),
            micros(self.timing.kill_after),
            micros(self.timing.margin),
            self.variables.len() as u64,
            self.payload.len() as u64,
        ];
        let mut bytes = numbers.map(u64::to_le_bytes).concat();
        bytes.extend_from_slice(&self.variables);
        bytes.extend_from_slice(&self.payload);
        bytes
    }

    pub(super) fn read(mut from: impl Read) -> io::Result<Self> {
        let mut head = [[0; 8]; 5];
        from.read_exact(head.as_flattened_mut())?;
        let [valid_until, kill_after, margin, variables, payload] = head.map(u64::from_le_bytes);
        let mut text = |length: u64| {
            let mut text = vec![0; usize::try_from(length).map_err(io::Error::other)?];
            from.read_exact(&mut text).map(|()| text)
        };
        let (variables, payload) = (text(variables)?, text(payload)?);
        let timing =
            Timing { kill_after: Duration::from_micros(kill_after), margin: Duration::from_micros(margin) };
        Ok(Self { valid_until: Moment::from_micros(valid_until), timing, variables, payload })
    }
}

fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_order_arrives_as_it_was_given() {
        let timing = Timing { kill_after: Duration::from_secs(5), margin: Duration::from_millis(100) };
        let (variables, payload) = (b"A=b\0".to_vec(), b"{\"a\": 1}".to_vec());
        let order = Order { valid_until: Moment::from_micros(77), timing, variables, payload };
        assert_eq!(Order::read(order.to_bytes().as_slice()).unwrap(), order);
        assert!(Order::read(&order.to_bytes()[..45]).is_err());
    }
}
